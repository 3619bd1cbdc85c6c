"""What a schema cannot say about an experiment: how its fields must fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labledger import references
from labledger.experiment import staging
from labledger.experiment.findings import FieldPath, Finding, Refused
from labledger.near_names import near_names
from labledger.records import JsonObject

PHASES: dict[str, FieldPath] = {
    "setup": ("runtime", "setup"),
    "agent": ("runtime", "agent"),
    "grader": ("benchmark", "grader"),
}
"""Where each phase of a trial is authored."""

RUNNER_FIELDS = ("setup_ms", "agent_ms", "grader_ms", "total_ms")
"""What a metric `from: runner` may measure: durations in milliseconds."""

MIN_MEMORY_BYTES = 6 << 20
"""Docker starts no container with less."""

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_METRIC_KEYS = {
    "result": {"pointer"},
    "score": {"pointer"},
    "events": {"event", "field", "aggregate"},
    "runner": {"field"},
}


class _Sound:
    """The parts of an experiment that nothing has been said against."""

    def __init__(self, data: Any, broken: Sequence[FieldPath]) -> None:
        self.data = data
        self._broken = broken

    def get(self, path: FieldPath) -> Any:
        """The value at `path`, or None where it is missing or something at or in it is broken."""
        return lookup(self.data, path) if self._is_sound(path) else None

    def _is_sound(self, path: FieldPath) -> bool:
        return not any(broken[: len(path)] == path for broken in self._broken)

    def mapping(self, path: FieldPath) -> Iterator[tuple[FieldPath, str, Any]]:
        """Place, key and value of each sound entry of the mapping at `path`."""
        found = lookup(self.data, path)
        for key in found if isinstance(found, dict) else ():
            if self._is_sound((*path, key)):
                yield (*path, key), key, found[key]

    def items(self, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
        """Place and value of each sound item of the list at `path`."""
        found = lookup(self.data, path)
        for index in range(len(found) if isinstance(found, list) else 0):
            if self._is_sound((*path, index)):
                yield (*path, index), found[index]


def find_all(data: Any, folder: Path, broken: Sequence[FieldPath]) -> Iterator[Finding]:
    """Everything in an experiment that fits the schema and makes no sense.

    `folder` is where its paths start from. What is `broken` already is left alone, so that one
    mistake is said once.
    """
    sound = _Sound(data, broken)
    yield from _variant_findings(sound)
    yield from _dataset_findings(sound, folder)
    yield from _resource_findings(sound)
    yield from _user_findings(sound)
    yield from _grader_binding_findings(sound)
    for path in PHASES.values():
        yield from _phase_findings(sound, path)
        yield from _file_findings(sound, path, folder)
    yield from _metric_findings(sound)


def lookup(data: Any, path: FieldPath) -> Any:
    """The value at `path`, or None where there is nothing."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def authored_variants(data: Any) -> list[tuple[FieldPath, JsonObject]]:
    """The baseline and then the variants of the plan, each with where it is written."""
    places: list[FieldPath] = [("baseline",)]
    places += [("variant_plan", i) for i in range(len(lookup(data, ("variant_plan",)) or []))]
    return [(place, lookup(data, place)) for place in places]


def memory_bytes(memory: str | float) -> int:
    """Bytes in a size such as ``512m``, ``1.5g`` or a plain number; units are powers of 1024."""
    text = str(memory).lower()
    number = text.rstrip("bkmg")
    return int(float(number) * _UNITS[text[len(number) :]])


def phase_texts(phase: JsonObject) -> Iterator[tuple[FieldPath, str]]:
    """Each authored text of a phase in which a `$NAME` may stand, with its place in the phase."""
    for index, word in enumerate(phase["command"]):
        yield ("command", index), str(word)
    for name, value in (phase.get("env") or {}).items():
        yield ("env", name), str(value)


def _variant_findings(sound: _Sound) -> Iterator[Finding]:
    seen: dict[str, FieldPath] = {}
    for place in (("baseline",), *_plan_places(sound)):
        name = sound.get((*place, "variant_id"))
        if name in seen:
            first = "the baseline" if seen[name] == ("baseline",) else f"entry {seen[name][-1]}"
            message = f"the variant id {name!r} is taken by {first} already"
            yield Finding((*place, "variant_id"), message, "give each variant an id of its own")
        elif name is not None:
            seen[name] = place


def _plan_places(sound: _Sound) -> list[FieldPath]:
    plan = lookup(sound.data, ("variant_plan",))
    return [("variant_plan", i) for i in range(len(plan) if isinstance(plan, list) else 0)]


def _dataset_findings(sound: _Sound, folder: Path) -> Iterator[Finding]:
    path = sound.get(("dataset", "path"))
    if path is not None and not (folder / path).is_file():
        kind = "is not a file" if (folder / path).exists() else "does not exist"
        hint = "paths start from the experiment file's folder"
        message = f"{path!r} {kind} (looked for {(folder / path).absolute()})"
        yield Finding(("dataset", "path"), message, hint)


def _resource_findings(sound: _Sound) -> Iterator[Finding]:
    memory = sound.get(("runtime", "resources", "memory"))
    if memory is not None and memory_bytes(memory) < MIN_MEMORY_BYTES:
        unit = f"did you mean {memory}m?" if re.fullmatch(r"\d+", str(memory)) else None
        message = f"found {memory}, which is {memory_bytes(memory)} bytes; Docker needs 6m or more"
        yield Finding(("runtime", "resources", "memory"), message, unit)


def _user_findings(sound: _Sound) -> Iterator[Finding]:
    """Only root can make the agent another user, and only another user than itself."""
    place = ("runtime", "agent", "user")
    agent, container = sound.get(place), sound.get(("runtime", "user"))
    if agent is None:
        return
    if _is_root(agent):
        hint = "leave it out: the agent runs as the container's user then, root in most images"
        yield Finding(place, f"found {agent}; expected another user than root", hint)
    elif container is not None and not _is_root(container):
        message = (
            f"found {agent}, and runtime.user is {container}; only root can start it as another"
        )
        hint = "leave runtime.user out, or make it root; the grader then runs as root too"
        yield Finding(place, message, hint)


def _is_root(user: str | int) -> bool:
    return str(user).partition(":")[0].strip("0") in {"", "root"}


def _texts(sound: _Sound, phase: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Each sound text of a phase in which a `$NAME` may stand, with its place."""
    for place, word in sound.items((*phase, "command")):
        yield place, str(word)
    for place, _, value in sound.mapping((*phase, "env")):
        yield place, str(value)


def _grader_binding_findings(sound: _Sound) -> Iterator[Finding]:
    """The grader is the same for all variants, so it must not depend on one's bindings."""
    variants: list[FieldPath] = [("baseline",), *_plan_places(sound)]
    bound = {name for v in variants for _, name, _ in sound.mapping((*v, "bindings"))}
    for place, text in _texts(sound, PHASES["grader"]):
        for name in sorted(bound.intersection(references.names(text))):
            message = f"${name} is a binding; the grader is the same for every variant"
            hint = "read it from $AGENTLAB_BINDINGS_PATH inside the grader, if it must know it"
            yield Finding(place, message, hint)


def _phase_findings(sound: _Sound, path: FieldPath) -> Iterator[Finding]:
    if sound.get((*path, "command", 0)) == "":
        yield Finding((*path, "command", 0), "is empty; expected the program to start")
    for place, text in _texts(sound, path):
        for name in references.names(text):
            if references.is_contract_name(name) and name not in references.CONTRACT_NAMES:
                known = sorted(references.CONTRACT_NAMES)
                near = near_names(name, known) or known
                hint = f"such names are {' '.join(f'${one}' for one in near)}"
                yield Finding(place, f"${name} is no name that a container has", hint)
    for place, name, _ in sound.mapping((*path, "env")):
        if references.is_contract_name(name):
            yield Finding(place, f"{name} is set by labledger in every container")


def _file_findings(sound: _Sound, path: FieldPath, folder: Path) -> Iterator[Finding]:
    for place, name in sound.items((*path, "files")):
        try:
            staging.find(folder, name)
        except Refused as refused:
            yield Finding(place, refused.message, refused.hint)


def _metric_findings(sound: _Sound) -> Iterator[Finding]:
    seen: dict[str, int | str] = {}
    for path, metric in sound.items(("metrics",)):
        if metric["id"] in seen:
            message = f"the metric id {metric['id']!r} is taken by entry {seen[metric['id']]}"
            yield Finding((*path, "id"), message, "give each metric an id of its own")
        seen.setdefault(metric["id"], path[-1])
        yield from _metric_key_findings(metric, path)
        if metric["from"] == "events":
            yield from _event_metric_findings(metric, path)


def _metric_key_findings(metric: JsonObject, path: FieldPath) -> Iterator[Finding]:
    source = metric["from"]
    takes = _METRIC_KEYS[source]
    for key in sorted(metric.keys() - takes - {"id", "from"}):
        hint = f"it takes {', '.join(sorted(takes))}"
        yield Finding((*path, key), f"means nothing for a metric from {source}", hint)
    if takes == {"pointer"} and "pointer" not in metric:
        hint = "a JSON pointer into the agent's result or the score, such as /metrics/confidence"
        yield Finding(path, "'pointer' is missing", hint)
    if source == "runner" and metric.get("field") not in RUNNER_FIELDS:
        found = f"found {metric['field']!r}" if "field" in metric else "'field' is missing"
        at: FieldPath = (*path, "field") if "field" in metric else path
        yield Finding(at, f"{found}; expected one of {', '.join(RUNNER_FIELDS)}")


def _event_metric_findings(metric: JsonObject, path: FieldPath) -> Iterator[Finding]:
    aggregate = metric.get("aggregate", "count" if "field" not in metric else None)
    if aggregate is None:
        hint = "one of sum, max, min or last"
        yield Finding(path, "'aggregate' is missing: how many values become one", hint)
    elif aggregate == "count" and "field" in metric:
        hint = "remove it, or choose sum, max, min or last"
        yield Finding((*path, "field"), "means nothing where events are counted", hint)
    elif aggregate != "count" and "field" not in metric:
        hint = "the dotted path of a number in the event, such as usage.tokens_in"
        yield Finding(path, f"'field' is missing: what to take the {aggregate} of", hint)
    if aggregate != "count" and "event" not in metric:
        yield Finding(path, "'event' is missing", "the type of the events to read")
