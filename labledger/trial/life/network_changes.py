"""Provide the networks of an attempt, change them between agent and grader, and remove them.

What the host does with an agent's container between its two parts is here, too: the agent part has
been stored by then, and the grader has not started. Each step may be interrupted and repeated, also
by another coordinator, so it must be safe to repeat. Remove networks only when the containers of
the attempt are gone.
"""

from __future__ import annotations

from labledger.engine.engine import Engine
from labledger.engine.networks import BRIDGE, NONE, Networks
from labledger.records import JsonObject
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life.container_start import retry_engine_errors
from labledger.trial.life.egress_proxies import remove_proxies
from labledger.trial.life.phase_networks import (
    PARTS,
    Part,
    first_part,
    has_own_network,
    is_changed_between,
    network_of,
    proxy_of,
)
from labledger.trial.life.start_limiter import TrialContext


def provide_first_network(spec: AttemptSpec, context: TrialContext) -> None:
    """Provide the network that the attempt's container is created with."""
    provide_network(spec, context, first_part(spec))


def provide_network(spec: AttemptSpec, context: TrialContext, part: Part) -> str:
    """Return the engine's name of a part's network. Its egress proxy, if it has one, listens.

    Can be repeated. Raises `ContainerFailed` and `EngineUnavailable`.
    """
    proxy = proxy_of(spec, part)
    if proxy is None:
        return NONE if network_of(spec, part).mode == "none" else BRIDGE

    def provide() -> None:
        with context.limiter.engine_calls:
            proxy.provide(context.engine, spec.plan.egress_image)

    retry_engine_errors(provide)
    return proxy.name


def change_network(spec: AttemptSpec, context: TrialContext, container: str) -> None:
    """Give the container, whose agent part has ended, the network of its grader.

    It may run or have stopped. Can be repeated.
    """
    if is_changed_between(spec):
        network = provide_network(spec, context, "grader")
        retry_engine_errors(lambda: Networks(context.engine).move(container, network))


def remove_networks(spec: AttemptSpec, engine: Engine) -> None:
    """Remove what an attempt had for its networks. Its containers must be gone."""
    if spec.uses_egress_proxy:
        remove_proxies(engine, spec.labels())


def reports(spec: AttemptSpec, engine: Engine) -> JsonObject:
    """Return what the proxies of an attempt did, by part; {} if it has none."""
    found: JsonObject = {}
    for part in PARTS:
        proxy = proxy_of(spec, part) if has_own_network(spec, part) else None
        # That of a grader which did not run was never created.
        if proxy is not None and (part == first_part(spec) or engine.inspect(proxy.name)):
            found[part] = proxy.report(engine)
    return found


def prepare_for_grader(spec: AttemptSpec, context: TrialContext, container: str) -> None:
    """Change the container with the id `container` to what its grader needs.

    That is its network. Raises `ContainerFailed` or `EngineUnavailable`.
    """
    change_network(spec, context, container)
