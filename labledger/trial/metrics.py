"""The metrics that an experiment asks for, out of what a trial produced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labledger.records import Event, JsonObject, Metric, Phase


@dataclass(frozen=True, slots=True)
class Sources:
    """Where metrics come from."""

    result: JsonObject | None
    score: JsonObject | None
    events: tuple[Event, ...]
    phases: Mapping[str, Phase]
    duration_ms: int


def collect(definitions: Iterable[JsonObject], sources: Sources) -> tuple[Metric, ...]:
    """One `Metric` for each definition whose value is there; what is missing gives no row."""
    found = []
    for definition in definitions:
        value = _storable(_value(definition, sources))
        if value is not None:
            found.append(Metric(definition["id"], definition["from"], value))
    return tuple(found)


def _storable(value: Any) -> float | int | str | None:
    """A value as a metric can hold it: a text, a finite double or an integer of 64 bits."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str) else None


def _value(definition: JsonObject, sources: Sources) -> Any:
    match definition["from"]:
        case "result":
            return at_pointer(sources.result, definition["pointer"])
        case "score":
            return at_pointer(sources.score, definition["pointer"])
        case "runner":
            return _duration(definition["field"], sources)
        case _:
            return _over_events(definition, sources.events)


def _duration(field: str, sources: Sources) -> int | None:
    if field == "total_ms":
        return sources.duration_ms
    phase = sources.phases.get(field.removesuffix("_ms"))
    return phase.duration_ms if phase else None


def _over_events(definition: JsonObject, events: tuple[Event, ...]) -> Any:
    wanted = definition.get("event")
    matching = [event.body for event in events if wanted is None or event.type == wanted]
    if definition["aggregate"] == "count":
        return len(matching)
    values = [at_field(body, definition["field"]) for body in matching]
    values = [value for value in values if value is not None]
    if not values:
        return None
    if definition["aggregate"] == "last":
        return values[-1]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return _AGGREGATES[definition["aggregate"]](numbers) if numbers else None


_AGGREGATES: dict[str, Callable[[list[int | float]], int | float]] = {
    "sum": sum,
    "max": max,
    "min": min,
}


def at_field(value: Any, dotted: str) -> Any:
    """What lies at a dotted path such as ``usage.tokens_in``; None where nothing does."""
    for step in dotted.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def at_pointer(value: Any, pointer: str) -> Any:
    """What lies at a JSON pointer (RFC 6901); None where nothing does."""
    for token in pointer.split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
