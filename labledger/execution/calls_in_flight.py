"""What agents of running trials have asked of models so far, by the gateway's journals.

Journals of trials on hosts of a cluster are there: only those of this machine are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from labledger import clock
from labledger.records import JsonObject
from labledger.records.model_calls import JOURNAL, ModelCall, read_calls
from labledger.trial.attempt_spec import AttemptSpec

_INTERVAL_S = 2.0
_MAX_SHARE = 0.05
"""The largest share of the coordinator's time that reading may take."""


class CallsInFlight:
    """The calls of the attempts that run on this machine. For one thread."""

    def __init__(self) -> None:
        self._next_look = 0.0
        self._calls: Mapping[tuple[int, int], list[ModelCall]] = {}

    def look(
        self, specs: Iterable[AttemptSpec]
    ) -> Mapping[tuple[int, int], list[ModelCall]] | None:
        """Read the journals of attempts, and return their calls by slot and attempt.

        Returns None, and reads nothing, if it was called just before.
        """
        began = clock.monotonic()
        if began < self._next_look:
            return None
        calls = {}
        for spec in specs:
            if spec.uses_models and not spec.is_remote:
                with suppress(OSError, ValueError):
                    calls[spec.key] = read_calls(spec.folder / JOURNAL)
        self._calls = calls
        now = clock.monotonic()
        self._next_look = now + max(_INTERVAL_S, (now - began) / _MAX_SHARE)
        return calls

    def as_json(self) -> JsonObject:
        """Return how many calls there were at the last look, and how long limits held them back."""
        calls = [call for of_attempt in self._calls.values() for call in of_attempt]
        waited_ms = sum(call.waited_ms for call in calls)
        return {"calls": sum(call.asked for call in calls), "waited_s": waited_ms / 1000}
