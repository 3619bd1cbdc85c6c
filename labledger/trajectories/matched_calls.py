"""Give the steps of an agent's log the usage that the gateway counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labledger.records import JsonObject
from labledger.records.model_calls import ModelCall
from labledger.trajectories.atif import Metrics, Step
from labledger.trajectories.recorded_calls import metrics_of


class MatchedCalls:
    """The calls of an attempt that belong to no step yet.

    A call belongs to the step with its request's id, or else to the next step that claims the same
    number of request tokens.
    """

    def __init__(self, calls: Sequence[ModelCall]) -> None:
        self._left = [call for call in calls if call.usage is not None]

    def with_usage(self, step: Step) -> Step:
        """Return a step with the usage of its call; the step itself if none matches."""
        call = self._matching(step)
        counted = None if call is None else metrics_of(call.usage)
        if call is None or counted is None:
            return step
        self._left = self._left[self._left.index(call) + 1 :]
        extra: JsonObject = {**(step.extra or {}), "call": call.call}
        if step.metrics is not None and step.metrics.cost_usd is not None:
            extra["claimed_cost_usd"] = step.metrics.cost_usd
        return replace(step, metrics=counted, extra=extra)

    def _matching(self, step: Step) -> ModelCall | None:
        request = (step.extra or {}).get("request_id")
        if request is not None:
            for call in self._left:
                if call.request_id == request:
                    return call
        claimed = step.metrics or Metrics()
        if step.source != "agent" or claimed.prompt_tokens is None:
            return None
        return next(
            (c for c in self._left if c.usage and c.usage.request == claimed.prompt_tokens), None
        )
