"""What a gateway says of itself: its process, what trials used, and the pace of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labledger.records.json_codec import Section
from labledger.records.model_calls import NO_TOKENS, Usage


@dataclass(frozen=True, slots=True)
class Totals(Section):
    """What calls used together."""

    calls: int = 0
    """Calls that the provider was asked."""
    usage: Usage = NO_TOKENS
    """What is known to be charged."""
    cost: int = 0
    """In picodollars, of the calls whose usage and price are known."""
    unknown: int = 0
    """Calls of which the usage, and so the cost, is not known."""
    unpriced: int = 0
    """Calls whose usage is known, but no price."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Calls that were not admitted, by the reason."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Other calls that ended with a reason, by it."""
    waited_ms: int = 0


@dataclass(frozen=True, slots=True)
class VariantTotals(Section):
    """What the attempts of a variant used on this host."""

    run_id: str
    variant_id: str
    open_attempts: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class KeyPace(Section):
    """How fast the requests of one key go to a provider."""

    provider: str
    upstream: str
    in_flight: int
    waiting: int
    concurrency: float
    """How many requests may be under way at once."""
    paused_s: float
    """For how long requests are still held back since the provider's limits were met."""
    refused: bool
    """Whether the provider refused the key, and none has come since."""


@dataclass(frozen=True, slots=True)
class GatewayStatus(Section):
    """A gateway at one moment."""

    pid: int
    version: str
    protocol: int
    started_at: str
    runs_with_keys: tuple[str, ...]
    variants: tuple[VariantTotals, ...]
    paces: tuple[KeyPace, ...]
    problems: tuple[str, ...] = ()
    """What does not work, such as a journal that cannot be written."""
