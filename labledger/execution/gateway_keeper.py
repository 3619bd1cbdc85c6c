"""Keeping the gateway of a run's models running while its trials run.

The gateway goes on without the coordinator. One that died is started again by whoever runs trials:
it serves the open attempts by their grants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.experiment.model_settings import ModelSettings
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.trial_settings import VariantSettings
from labledger.gateway.client import GatewayClient
from labledger.records.model_costs import NO_PRICES, PriceTable
from labledger.records.model_grants import ENDLESS, Amounts, KeySource, ProviderConfig, cap_of
from labledger.resources import require_for

_INTERVAL_S = 3.0


def models_of(experiment: ExperimentPlan) -> list[ModelSettings]:
    """Return what the variants of an experiment grant of models; [] if no agent has any."""
    if experiment.regrades is not None:
        return []
    settings = (VariantSettings.of(experiment, each).defaults for each in experiment.variants)
    return [each.runtime.models for each in settings if each.runtime.models is not None]


def prices_of(experiment: ExperimentPlan) -> PriceTable:
    """Return the prices of the models that an experiment's agents may ask, of those that have one.

    Raises `ExtraMissing` if that needs the package with prices, and it is not installed.
    """
    models = models_of(experiment)
    if not models:
        return NO_PRICES
    require_for("prices of models", "agents", "genai_prices")
    from labledger.gateway.known_prices import price_table

    own = dict.fromkeys(price for each in models for price in each.prices or ())
    granted = dict.fromkeys(
        (each.known_providers[name], model)
        for each in models
        for name, model in each.granted_models()
    )
    return price_table(granted, own, clock.now())


def shared_caps_of(experiment: ExperimentPlan) -> Mapping[str | None, Amounts]:
    """Return the caps that trials share, by variant; that of the run has the name None.

    Where variants name different caps of the run, the lowest of each kind holds.
    """
    if experiment.regrades is not None:
        return {}
    caps: dict[str | None, Amounts] = {}
    for variant in experiment.variants:
        models = VariantSettings.of(experiment, variant).defaults.runtime.models
        if models is not None and models.has_shared_limits:
            caps[variant.variant_id] = cap_of(models.variant_limits)
            caps[None] = caps.get(None, ENDLESS).combined(min, cap_of(models.run_limits))
    return caps


def providers_of(models: Iterable[ModelSettings]) -> list[ProviderConfig]:
    """Return the different providers of granted models."""
    providers = (provider for each in models for provider in each.granted_providers)
    return list(dict.fromkeys(providers))


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
