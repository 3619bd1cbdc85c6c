"""What the agents of an experiment need: their installed programs, their models, and prices.

Before a run, each agent that has a profile is put into a folder that its trials mount. While its
trials run, the gateway of its models is kept running: it goes on without the coordinator, and one
that died is started again by whoever runs trials, and serves the open attempts by their grants.
What models cost is in `records.model_costs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.execution.key_renewal import KeyRenewal, ReadKeys
from labledger.execution.run_events import Listener, run_event
from labledger.experiment.model_settings import ModelSettings
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.plan_sections import ProfiledAgent
from labledger.experiment.trial_settings import VariantSettings
from labledger.files import permissions
from labledger.gateway.client import GatewayClient
from labledger.records.known_prices import price_table
from labledger.records.model_costs import NO_PRICES, PriceTable
from labledger.records.model_grants import ENDLESS, Amounts, KeySource, ProviderConfig, cap_of
from labledger.resources import require_for

if TYPE_CHECKING:
    from labledger.agents.agent_trees import InstalledAgent
    from labledger.agents.installation import AgentTarget
    from labledger.agents.profiles import AgentProfile


def targets_of(experiment: ExperimentPlan, *, unfrozen: bool = False) -> dict[str, AgentTarget]:
    """Return the agent to install for each variant whose agent has a profile.

    With `unfrozen`, returns only agents whose files are not frozen. Raises `InvalidInput` for a
    missing profile.
    """
    profiles = {each.variant_id: each.profile for each in experiment.variants if each.profile}
    if experiment.regrades is not None or not profiles:
        return {}
    # Imported late: most runs have no profile, and what installs one takes long to import.
    from labledger.agents.installation import AgentTarget

    return {
        variant_id: AgentTarget(_profile_of(each), each.version, each.tree_sha256)
        for variant_id, each in profiles.items()
        if each.tree_sha256 is None or not unfrozen
    }


def _profile_of(agent: ProfiledAgent) -> AgentProfile:
    from labledger.agents.own_folder import known_profile
    from labledger.agents.profiles import load_profile

    if agent.folder is None:
        return load_profile(agent.profile)
    return known_profile(agent.profile, agent.version, agent.folder, agent.source_sha256)


def install_agents(experiment: ExperimentPlan, emit: Listener) -> Mapping[str, InstalledAgent]:
    """Install the agents that an experiment's variants have, unless they are there, and check them.

    `emit` gets an event whenever an installation begins or ends, in this thread. Return them by
    variant. Raises `InvalidInput` with every agent that could not be installed.
    """
    targets = targets_of(experiment)
    if not targets:
        return {}
    if needed := permissions.missing(experiment.agent_permissions):
        raise permissions.refusal(needed, "the agents of the experiment", by_name=False)
    from concurrent.futures import ThreadPoolExecutor
    from queue import SimpleQueue

    from labledger.agents.installation import install

    lines: SimpleQueue[str | None] = SimpleQueue()
    with ThreadPoolExecutor(1, "agents") as pool:
        installing = pool.submit(install, list(targets.values()), report=lines.put)
        installing.add_done_callback(lambda _: lines.put(None))
        while (line := lines.get()) is not None:
            emit(run_event("agent_installation", message=line))
    return dict(zip(targets, installing.result(), strict=True))


def _models_by_variant(experiment: ExperimentPlan) -> dict[str, ModelSettings]:
    if experiment.regrades is not None:
        return {}
    granted = {
        variant.variant_id: VariantSettings.of(experiment, variant).defaults.runtime.models
        for variant in experiment.variants
    }
    return {variant_id: models for variant_id, models in granted.items() if models is not None}


def models_of(experiment: ExperimentPlan) -> list[ModelSettings]:
    """Return what the variants of an experiment grant of models; [] if no agent has any."""
    return list(_models_by_variant(experiment).values())


def providers_of(models: Iterable[ModelSettings]) -> list[ProviderConfig]:
    """Return the different providers of granted models."""
    providers = (provider for each in models for provider in each.granted_providers)
    return list(dict.fromkeys(providers))


def shared_caps_of(experiment: ExperimentPlan) -> Mapping[str | None, Amounts]:
    """Return the caps that trials share, by variant; that of the run has the name None.

    Where variants name different caps of the run, the lowest of each kind holds.
    """
    caps: dict[str | None, Amounts] = {}
    for variant_id, models in _models_by_variant(experiment).items():
        if models.has_shared_limits:
            caps[variant_id] = cap_of(models.variant_limits)
            caps[None] = caps.get(None, ENDLESS).combined(min, cap_of(models.run_limits))
    return caps


_INTERVAL_S = 3.0
"""How often a gateway is looked at."""
_READING_S = 0.3
"""How often it is looked at while keys are read again: requests may wait for them."""


class GatewayKeeper:
    """Keeps the gateway of one run running. For one thread."""

    def __init__(
        self,
        folder: Path,
        run_id: str,
        keys: Mapping[KeySource, str],
        *,
        shares_caps: bool = False,
        read: ReadKeys | None = None,
    ) -> None:
        """`folder` has the gateway's files; `shares_caps` if others share the run's caps.

        `read` reads the keys again; None if they never change.
        """
        self.client = GatewayClient(folder, shares_caps=shares_caps)
        self._run_id, self._renewal = run_id, KeyRenewal(keys, read)
        self._next_look = 0.0
        self._is_away = False

    def take(self, keys: Mapping[KeySource, str], read: ReadKeys | None = None) -> None:
        """Use these keys from now on, and start the gateway. Raises `GatewayUnavailable`."""
        self._renewal = KeyRenewal(keys, read)
        self.start()

    def forget(self) -> None:
        """Keep no key."""
        self._renewal = KeyRenewal({})

    def start(self) -> None:
        """Start the gateway unless it runs, and hand it the keys. Raises `GatewayUnavailable`."""
        renewal = self._renewal
        refused = self.client.ensure(
            self._run_id, renewal.keys, renewable=renewal.renewable, settled=renewal.settled
        )
        renewal.begin_if_due(refused - renewal.settled)

    def look(self) -> list[str]:
        """Start the gateway again if it has died, and return what a person should know.

        It does nothing if it was called just before.
        """
        if clock.monotonic() < self._next_look:
            return []
        was_away, self._is_away = self._is_away, False
        unread = self._renewal.take_read()
        problem = None
        try:
            self.start()
        except (LabLedgerError, OSError) as error:
            self._is_away, problem = True, str(error)
        interval_s = _READING_S if self._renewal.is_reading else _INTERVAL_S
        self._next_look = clock.monotonic() + interval_s
        told = [] if unread is None else [f"keys could not be read again: {unread}"]
        if self._is_away and not was_away:
            told.append(f"agents reach no model for now: {problem}")
        if was_away and not self._is_away:
            told.append("agents reach their models again")
        return told


def prices_of(experiment: ExperimentPlan) -> PriceTable:
    """Return the prices of the models that an experiment's agents may ask, of those that have one.

    Raises `ExtraMissing` if that needs the package with prices, and it is not installed.
    """
    models = models_of(experiment)
    if not models:
        return NO_PRICES
    require_for("prices of models", "agents", "genai_prices")

    own = dict.fromkeys(price for each in models for price in each.prices or ())
    granted = dict.fromkeys(
        (each.known_providers[name], model)
        for each in models
        for name, model in each.granted_models()
    )
    return price_table(granted, own, clock.now())
