"""What the agents of an experiment need: their installed programs, their models, and prices.

Before a run, each agent that has a profile is put into a folder that its trials mount. While its
trials run, the gateway of its models is kept running: it goes on without the coordinator, and one
that died is started again by whoever runs trials, and serves the open attempts by their grants.
Prices come from the experiment, and from the package genai-prices for models of which it says
nothing; what a call costs is computed in `records.model_costs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.execution.run_events import Listener, run_event
from labledger.experiment.model_settings import ModelSettings
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.trial_settings import VariantSettings
from labledger.gateway.client import GatewayClient
from labledger.records.model_costs import NO_PRICES, ModelPrice, PriceTable
from labledger.records.model_grants import ENDLESS, Amounts, KeySource, ProviderConfig, cap_of
from labledger.resources import require_for

if TYPE_CHECKING:
    from labledger.agents.agent_trees import InstalledAgent
    from labledger.agents.installation import AgentTarget


def targets_of(experiment: ExperimentPlan) -> dict[str, AgentTarget]:
    """Return what is installed for each variant whose agent has a profile.

    Raises `InvalidInput` for a profile that is not there.
    """
    profiles = {each.variant_id: each.profile for each in experiment.variants if each.profile}
    if experiment.regrades is not None or not profiles:
        return {}
    # Imported late: most runs have no profile, and what installs one takes long to import.
    from labledger.agents.installation import AgentTarget
    from labledger.agents.profiles import load_profile

    return {
        variant_id: AgentTarget(load_profile(profile.profile), profile.version)
        for variant_id, profile in profiles.items()
    }


def install_agents(experiment: ExperimentPlan, emit: Listener) -> Mapping[str, InstalledAgent]:
    """Install the agents that an experiment's variants have, unless they are there, and check them.

    `emit` gets an event whenever an installation begins or ends, in this thread. Return them by
    variant. Raises `InvalidInput` with every agent that could not be installed.
    """
    targets = targets_of(experiment)
    if not targets:
        return {}
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


class GatewayKeeper:
    """Keeps the gateway of one run running. For one thread."""

    def __init__(
        self,
        folder: Path,
        run_id: str,
        keys: Mapping[KeySource, str],
        *,
        shares_caps: bool = False,
    ) -> None:
        """`folder` is that of the gateway's files; `shares_caps` if others share the run's caps."""
        self.client = GatewayClient(folder, shares_caps=shares_caps)
        self._run_id, self._keys = run_id, keys
        self._next_look = 0.0
        self._is_away = False

    def take(self, keys: Mapping[KeySource, str]) -> None:
        """Use these keys from now on, and start the gateway. Raises `GatewayUnavailable`."""
        self._keys = keys
        self.start()

    def forget(self) -> None:
        """Keep no key."""
        self._keys = {}

    def start(self) -> None:
        """Start the gateway unless it runs, and hand it the keys. Raises `GatewayUnavailable`."""
        self.client.ensure(self._run_id, self._keys)

    def look(self) -> list[str]:
        """Start the gateway again if it has died, and return what a person should know.

        It does nothing if it was called just before.
        """
        if clock.monotonic() < self._next_look:
            return []
        was_away, self._is_away = self._is_away, False
        problem = None
        try:
            self.start()
        except (LabLedgerError, OSError) as error:
            self._is_away, problem = True, str(error)
        self._next_look = clock.monotonic() + _INTERVAL_S
        if self._is_away and not was_away:
            return [f"agents reach no model for now: {problem}"]
        if was_away and not self._is_away:
            return ["agents reach their models again"]
        return []


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


_PRICE_FIELDS = {
    "input": ("input_mtok",),
    "output": ("output_mtok",),
    "cache_read": ("cache_read_mtok", "input_mtok"),
    "cache_write": ("cache_write_mtok", "input_mtok"),
    "cache_write_1h": ("cache_write_1h_mtok", "cache_write_mtok", "input_mtok"),
}
"""For each kind of token, the package's price fields in order: the first that is set is used."""


def price_table(
    models: Iterable[tuple[ProviderConfig, str]], own: Iterable[ModelPrice], at: datetime
) -> PriceTable:
    """Return the prices of models at a time, from an experiment's own prices and the package.

    A provider is found by its name, and by its address if the package has no such name. It takes
    a tenth of a second to import the package. Raises nothing for a model without a price.
    """
    # Imported late: it takes long to import, and most runs have no models.
    from importlib.metadata import version

    own = tuple(own)
    replaced = {(price.provider, price.model) for price in own}
    wanted = [(p, model) for p, model in models if (p.name, model) not in replaced]
    known = [price for provider, model in wanted for price in _prices(provider, model, at)]
    source = f"genai-prices {version('genai-prices')}"
    return PriceTable((*own, *known), f"the experiment, {source}" if own else source)


def _prices(provider: ProviderConfig, model: str, at: datetime) -> list[ModelPrice]:
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    for name, address in ((provider.name, None), (None, provider.upstream)):
        try:
            _, info = snapshot.find_provider_model(model, None, name, address)
        except LookupError:
            continue
        # The snapshot is of a release: nothing here asks the network.
        prices = info.get_prices(at).__dict__
        return [_price(provider.name, model, prices, start) for start in _starts(prices)]
    return []


def _starts(prices: Mapping[str, Any]) -> list[int]:
    """Return the numbers of request tokens from which other prices apply."""
    tiers = (tier for price in prices.values() for tier in getattr(price, "tiers", ()))
    # The package's tiers begin above their start.
    return sorted({0, *(tier.start + 1 for tier in tiers)})


def _price(provider: str, model: str, prices: Mapping[str, Any], start: int) -> ModelPrice:
    values = {kind: _micros(prices, keys, start) for kind, keys in _PRICE_FIELDS.items()}
    return ModelPrice(provider, model, start, **values)


def _micros(prices: Mapping[str, Any], keys: tuple[str, ...], start: int) -> int | None:
    """Return the first price that there is, in micro-dollars for a million tokens."""
    price = next((prices[key] for key in keys if prices.get(key) is not None), None)
    if price is None:
        return None
    if hasattr(price, "tiers"):
        held = [tier.price for tier in price.tiers if tier.start < start]
        price = held[-1] if held else price.base
    return int((Decimal(price) * 1_000_000).to_integral_value())
