"""Check that the engine can have what the network `allowlist` needs.

That is an image with Python for the egress proxies, and internal networks. Where one of them cannot
be had, a run is refused: a trial never gets a wider network than its experiment allows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from labledger.checks.check_results import CheckResult
from labledger.checks.image_checks import ImageProbes
from labledger.engine.engine import Engine
from labledger.engine.networks import Networks
from labledger.errors import (
    EngineUnavailable,
    Exit,
    LabLedgerError,
    PreflightFailed,
    Problem,
)
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.templates import DEFAULT_IMAGE
from labledger.experiment.trial_settings import TrialSettings, VariantSettings
from labledger.trial.contract import Labels

_PYTHON = "python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'"

_HINT = (
    "name an image that has it with --egress-image, or choose `network: full` or `none`; "
    "`scripts/image` in a checkout builds labledger/python:3"
)


def egress_image_ref(option: str | None) -> str:
    """Return the image of egress proxies, from the option of a run."""
    return option or DEFAULT_IMAGE


def needs_egress_proxy(settings: Iterable[TrialSettings]) -> bool:
    """Return whether a phase of one of these trials has the network `allowlist`."""
    return any(s.agent_network.is_allowlist or s.grader_network.is_allowlist for s in settings)


def require_egress_image(engine: Engine, plan: ExperimentPlan, option: str | None) -> None:
    """Raise `PreflightFailed` if variants of a stored experiment need a proxy's image that is gone.

    A task may need one as well: its trial then pauses dispatch.
    """
    variants = (VariantSettings.of(plan, variant).defaults for variant in plan.variants)
    ref = egress_image_ref(option)
    if needs_egress_proxy(variants) and engine.image_id(ref) is None:
        message = f"network: allowlist needs {ref}, which is not available"
        raise PreflightFailed([Problem("egress proxy", message, hint=_HINT)])


def check_egress(
    engine: Engine, probes: ImageProbes, option: str | None, *, pull: bool
) -> Iterator[CheckResult]:
    """Check image and networks. With `pull`, a missing image is pulled.

    Raises `EngineUnavailable`.
    """
    ref = egress_image_ref(option)
    yield _check_image(engine, probes, ref, pull=pull)
    yield _check_networks(engine)


def _check_image(engine: Engine, probes: ImageProbes, ref: str, *, pull: bool) -> CheckResult:
    try:
        image = engine.image_id(ref)
        if image is None and pull:
            engine.pull(ref)
            image = engine.image_id(ref)
        if image is None:
            if engine.image_is_obtainable(ref):
                return CheckResult("egress proxy", f"{ref} is not here; `run` will pull it")
            raise LabLedgerError("it is not available locally and no registry offers it")
        status, output = probes.run_probe(image, _PYTHON)
    except EngineUnavailable:
        raise
    except LabLedgerError as error:
        status, output = -1, error.message
    if status == 0:
        return CheckResult("egress proxy", f"{ref} has a python3 that runs it")
    detail = output.strip()[:300] or "its python3 is older than 3.11"
    return CheckResult(
        "egress proxy",
        f"network: allowlist needs an egress proxy, and {ref} cannot run it: {detail}",
        ok=False,
        hint=_HINT,
        exit_code=Exit.INVALID,
    )


def _check_networks(engine: Engine) -> CheckResult:
    networks = Networks(engine)
    try:
        network = networks.provide_internal(
            f"labledger-probe-{secrets.token_hex(8)}", {Labels.PROBE: secrets.token_hex(8)}
        )
        networks.remove(network.network_id)
    except EngineUnavailable:
        raise
    except LabLedgerError as error:
        return CheckResult(
            "egress proxy",
            f"network: allowlist needs internal networks, and the engine has none: {error.message}",
            ok=False,
            hint="let the engine create bridge networks, or choose `network: full` or `none`",
            exit_code=Exit.INVALID,
        )
    return CheckResult("egress proxy", "the engine has internal networks")
