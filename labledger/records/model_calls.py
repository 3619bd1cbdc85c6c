"""Calls of an agent to a model, as the gateway counted them, and their journal.

The journal is a file of JSON lines: one when a call begins, one when it ends, one for the fault of
a failed call. A call without an end is unknown, because it may have been charged. `Usage` unifies
the token counts of providers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import Section
from labledger.records.outcomes import Reason

JOURNAL = "models/calls.jsonl"
"""The journal of an attempt, below its trial's folder."""
SCHEMA = "labledger.model_calls.v1"
"""The `schema_version` of a journal's first line."""


class Api(StrEnum):
    """An API of model providers, by which requests, answers and errors are read."""

    ANTHROPIC_MESSAGES = "anthropic-messages"
    OPENAI_RESPONSES = "openai-responses"
    OPENAI_CHAT = "openai-chat"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class Usage(Section):
    """The tokens of one call, each counted under one name except `reasoning`."""

    input: int = 0
    """Tokens of the request that were neither read from a cache nor written to one."""
    cache_read: int = 0
    cache_write: int = 0
    """Tokens written to a cache for its usual time."""
    cache_write_1h: int = 0
    """Tokens written to a cache for an hour, which costs more."""
    output: int = 0
    """All tokens of the answer, including reasoning."""
    reasoning: int = 0
    """The part of `output` that is reasoning."""

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"cache_write_1h", "reasoning"})

    @property
    def total(self) -> int:
        """All tokens of the request and the answer."""
        return self.request + self.output

    @property
    def request(self) -> int:
        """All tokens of the request, including cached ones."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h


NO_TOKENS = Usage()
NO_SHARE = "no_share"
"""The reason of a call that waited too long for more of a cap that hosts share."""
JOURNAL_FAILED = "journal_failed"
"""The reason of a call that failed because the gateway could not write its journal."""
NOT_SENT = frozenset({"unreachable", "no_key", "held_back", "not_sent", Reason.REPLAY_MISS.value})
"""Reasons of failed calls that did not reach the provider."""


class CallState(StrEnum):
    """How a call ended."""

    ANSWERED = "answered"
    """The provider's whole answer arrived. Its status may be an error."""
    FAILED = "failed"
    """No answer arrived: the provider was not reached, or it sent something else."""
    CUT = "cut"
    """The answer ended too early, by the provider or because the agent went away."""
    REFUSED = "refused"
    """The gateway refused the call, which did not reach the provider."""
    UNKNOWN = "unknown"
    """The gateway died while the call was under way."""


class CallFault(StrEnum):
    """Whose fault a failed call was, if the gateway can show that it was not the request's.

    A failed call without a fault stays the agent's failure.
    """

    PROVIDER = "provider"
    """The provider also failed the gateway's own request for the same model."""
    CONFIGURATION = "configuration"
    """The provider refused the account, the key, the model or the address of the run."""


OPTIONAL_FACTS = (
    *("detail", "fault", "effort", "temperature", "service_tier"),
    *("price_condition", "fees", "stated_cost", "cost_unknown"),
)
"""Fields of a call that records and mirrors have only if they are set."""


@dataclass(frozen=True, slots=True)
class ModelCall(Section):
    """One call of an attempt's agent to a model."""

    call: int
    """The number of the call in the attempt, from 1."""
    started_at: str
    provider: str
    api: str
    model: str
    """The requested model."""
    state: CallState = CallState.UNKNOWN
    status: int | None = None
    """The status of the answer that the agent got."""
    reason: str | None = None
    """The gateway's word for the refusal or failure."""
    model_served: str | None = None
    usage: Usage | None = None
    """None if the provider's answer had no usage: unknown."""
    raw_usage: JsonObject | None = None
    """The usage in the provider's answer, unchanged."""
    first_byte_ms: int | None = None
    duration_ms: int | None = None
    waited_ms: int = 0
    """How long the call waited for limits of the provider. Part of `duration_ms`."""
    request_id: str | None = None
    """The provider's name for the call."""
    reserved: Usage | None = None
    """The most that the call could use, which counts against limits if its usage is unknown.

    Zeros for a call that is free, such as one that only counts tokens.
    """

    replayed: bool = False
    """Whether the answer came from a record. It cost nothing, and its tokens are the record's."""

    detail: str | None = None
    """The provider's sentence in a refusal, or the contradiction in an answer."""
    fault: CallFault | None = None
    """Whose fault a failed call was; None if the gateway cannot show it."""
    effort: str | None = None
    """How much the model was asked to reason, in the provider's word or number of tokens."""
    temperature: float | None = None
    """The temperature that the request set."""
    service_tier: str | None = None
    """The tier that served the call, or else the tier that the request asked for."""
    price_condition: str | None = None
    """The tier, speed, place or time that chose the price; None for the standard price."""
    fees: int | None = None
    """The charges beyond tokens, such as for searches of the provider, in picodollars."""
    stated_cost: int | None = None
    """The provider's stated charge, in picodollars, which is then the cost."""
    cost_unknown: str | None = None
    """Why the cost is not known, although the tokens may be."""

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"reserved", "replayed", *OPTIONAL_FACTS})

    @property
    def asked(self) -> bool:
        """Whether the call may have reached the provider, which may charge."""
        return self.state is not CallState.REFUSED

    @property
    def is_answer(self) -> bool:
        """Whether the provider sent a whole answer without an error."""
        return self.state is CallState.ANSWERED and (self.status or 0) < 400

    @property
    def is_refusal(self) -> bool:
        """Whether the provider answered with an error."""
        return self.state is CallState.ANSWERED and not self.is_answer

    @property
    def charged(self) -> Usage | None:
        """The charged tokens: zeros if nothing can be charged, None if unknown."""
        if self.usage is not None:
            return self.usage
        free = self.reserved == NO_TOKENS or self.reason in NOT_SENT
        free = free or (self.is_refusal and not self._states_use)
        return NO_TOKENS if free or not self.asked else None

    @property
    def _states_use(self) -> bool:
        """Whether the answer states a charge, also if its numbers cannot be right."""
        return self.raw_usage is not None or self.cost_unknown is not None


_FREE = canonical_json.dumps(NO_TOKENS.as_json())
_NOT_SENT_LIST = ", ".join(f"'{reason}'" for reason in sorted(NOT_SENT))
CHARGED_NOTHING_SQL = f"""\
({{CALL}}.state = 'refused' OR {{CALL}}.reserved = '{_FREE}'
    OR {{CALL}}.reason IN ({_NOT_SENT_LIST})
    OR ({{CALL}}.state = 'answered' AND {{CALL}}.status >= 400
        AND {{CALL}}.raw_usage IS NULL AND {{CALL}}.cost_unknown IS NULL))"""
"""Whether `ModelCall.charged` is zeros for a call without usage, as SQL over its row.

It is 1, or else 0 or null. Views are made of it: a change needs a migration.
"""


def opened_line(at: str) -> JsonObject:
    """Return the first line of a journal whose gateway finds the faults of failed calls."""
    return {"schema_version": SCHEMA, "opened_at": at, _FINDS_FAULTS: True}


def asked_line(call: ModelCall) -> JsonObject:
    """Return the line for a call that has begun."""
    document = call.as_json()
    return {"event": "asked", **{key: document[key] for key in _ASKED if key in document}}


def ended_line(call: ModelCall) -> JsonObject:
    """Return the line for a call that has ended.

    Repeats the reservation, because it may be known better.
    """
    document = call.as_json()
    repeated = {"call", "reserved"}
    members = {
        key: value for key, value in document.items() if key in repeated or key not in _ASKED
    }
    return {"event": "ended", **members}


def judged_line(call: int, fault: CallFault | None, *, needless: bool = False) -> JsonObject:
    """Return the line for a failed call, once its fault is found.

    The call was `needless` if only other models ever answered the agents of the variant.
    """
    return {"event": "judged", "call": call, "fault": fault, "needless": needless}


_FINDS_FAULTS = "finds_faults"
_ASKED = ("call", "started_at", "provider", "api", "model", "reserved", "replayed")


@dataclass(frozen=True, slots=True)
class CallJournal:
    """The content of a journal of calls."""

    calls: tuple[ModelCall, ...] = ()
    """The calls, in order."""
    judged: frozenset[int] = frozenset()
    """The failed calls whose fault was examined, with or without a result."""
    needless: frozenset[int] = frozenset()
    """Examined calls to models that never answered an agent of the variant, while others did."""
    finds_faults: bool = False
    """Whether its gateway examines faults; earlier versions did not."""

    @property
    def unjudged(self) -> frozenset[int]:
        """The failed calls of an earlier version's gateway, which examined no faults."""
        if self.finds_faults:
            return frozenset()
        return frozenset(call.call for call in self.calls) - self.judged


def read_calls(path: Path) -> list[ModelCall]:
    """Return the calls of a journal in order. Raises as `read_journal`."""
    return list(read_journal(path).calls)


def read_journal(path: Path) -> CallJournal:
    """Return the content of a journal; no calls if there is no journal.

    Leaves out an incomplete last line, as no call was admitted after it. Raises `ValueError` for
    any other line that does not belong in a journal.
    """
    calls: dict[int, ModelCall] = {}
    judged: dict[int, bool] = {}
    finds_faults = False
    for number, line in enumerate(_whole_lines(path), 1):
        try:
            row = json.loads(line)
            if number == 1:
                finds_faults = row.get(_FINDS_FAULTS) is True
                if row.get("schema_version") != SCHEMA:
                    raise ValueError(f"found the version {row.get('schema_version')!r}")
            else:
                _take(calls, judged, row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: line {number}: {error}") from None
    in_order = tuple(calls[number] for number in sorted(calls))
    needless = frozenset(number for number, is_needless in judged.items() if is_needless)
    return CallJournal(in_order, frozenset(judged), needless, finds_faults)


def _take(calls: dict[int, ModelCall], judged: dict[int, bool], row: JsonObject) -> None:
    """Add what a line says to the calls."""
    event = row.pop("event")
    number = row["call"]
    if event == "asked" and number not in calls:
        calls[number] = ModelCall.from_json(row)
    elif event == "ended" and number in calls and calls[number].state is CallState.UNKNOWN:
        open_call = calls[number].as_json()
        calls[number] = ModelCall.from_json({**open_call, **row})
    elif event == "judged" and number in calls and calls[number].state is not CallState.UNKNOWN:
        fault = row["fault"]
        calls[number] = replace(calls[number], fault=fault and CallFault(fault))
        judged[number] = row["needless"] is True
    else:
        raise ValueError(f"{event!r} does not fit call {number}")


def _whole_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line
    except FileNotFoundError:
        return
