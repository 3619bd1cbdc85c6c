"""What an attempt's agent may ask of models: the grant, which the gateway goes by.

It is a file beside the trial, durable before the container starts, and holds no secret: of the
attempt's token, its digest. A gateway that starts again finds the open grants and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from labledger.records.json_codec import Section
from labledger.records.model_prices import ModelPrice
from labledger.records.model_providers import ProviderConfig

GRANT = "models/grant.json"
"""The grant of an attempt, below its trial's folder."""
SCHEMA = "labledger.model_grant.v1"
"""The `schema_version` of a grant."""
SOCKET = "gateway/socket"
"""Where the gateway listens for an attempt, below its trial's folder."""
RECORD = "models/record"
"""The folder of recorded requests and answers, below the trial's folder."""
MISSED = "models/missed.json"
"""The first request that a replay could not answer, below the trial's folder."""
UNSTATED_OUTPUT = 128_000
"""How many tokens an answer may have, where neither the request nor the grant says it."""
WAITED = "in/waited"
"""How long limits held the agent back, in hundredths of a second, below the trial's folder."""


class Waiting(StrEnum):
    """What becomes of the time that a call waits for limits of the provider."""

    EXCLUDED = "excluded"
    """It does not count against the agent's time limit."""
    COUNTED = "counted"


@dataclass(frozen=True, slots=True)
class CallLimits(Section):
    """A cap on what calls may use; None does not limit."""

    usd: float | None = None
    tokens: int | None = None
    requests: int | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"usd", "tokens", "requests"})


@dataclass(frozen=True, slots=True)
class ModelGrant(Section):
    """What one attempt may ask."""

    run_id: str
    schedule_idx: int
    attempt: int
    variant_id: str
    token_sha256: str
    """The digest of the token in hex."""
    models: Mapping[str, tuple[str, ...]]
    """By provider, the models that it may ask for, by their exact names."""
    providers: tuple[ProviderConfig, ...]
    """The providers of these models."""
    features: tuple[str, ...] = ()
    """What else it may use, such as a search by the provider."""
    limits: CallLimits = field(default_factory=CallLimits)
    """The caps of this trial."""
    variant_limits: CallLimits = field(default_factory=CallLimits)
    """The caps of all trials of its variant together."""
    run_limits: CallLimits = field(default_factory=CallLimits)
    """The caps of all trials of the run together."""
    shared: bool = False
    """Whether other gateways share the caps of variant and run: this one waits for its share."""
    prices: tuple[ModelPrice, ...] = ()
    """The prices of its models, by which caps in dollars are kept."""
    unstated_output: int = UNSTATED_OUTPUT
    """How many tokens an answer may have, where the request does not say it."""
    waiting: Waiting = Waiting.EXCLUDED
    record: bool = False
    """Whether requests and answers are kept."""
    replay: str | None = None
    """A file of recorded calls, one a line, whose answers are given instead of the provider's."""
    schema_version: str = SCHEMA
