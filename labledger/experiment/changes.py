"""What changed between a run's experiment and the one that is to continue it, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labledger import canonical
from labledger.experiment.document import result_part
from labledger.experiment.resolve import ResolvedExperiment
from labledger.records import JsonObject

_NAMED = 3
"""How many tasks a sentence names."""

_SHOWN = 80
"""How many characters of a value a sentence shows."""


def differences(
    old_document: JsonObject, old_task_digests: Mapping[str, str], new: ResolvedExperiment
) -> list[str]:
    """What can change a result and is not as it was, a sentence each; empty when nothing is.

    `old_document` is the run's `resolved_experiment_v1`, `old_task_digests` its tasks' digests by
    task id. Concurrency, name, description, tags and where the tasks lie may change.
    """
    before, after = result_part(old_document), result_part(new.document)
    old_digest, new_digest = before["dataset"].pop("digest"), after["dataset"].pop("digest")
    sentences = list(_file_sentences(before.pop("files"), after.pop("files")))
    for what, key, name in (("variant", "variants", "variant_id"), ("metric", "metrics", "id")):
        before[key], after[key] = _by_id(before[key], name), _by_id(after[key], name)
        sentences += _membership_sentences(what, before[key], after[key])
    sentences += _field_sentences(dict(_leaves(before, "")), dict(_leaves(after, "")))
    tasks = list(_task_sentences(old_task_digests, {t.task_id: t.digest for t in new.tasks}))
    if not tasks and old_digest != new_digest:
        tasks = ["the order of the tasks changed"]
    return sentences + tasks


def _by_id(items: Sequence[JsonObject], name: str) -> dict[str, JsonObject]:
    return {item[name]: item for item in items}


def _membership_sentences(
    what: str, old: dict[str, JsonObject], now: dict[str, JsonObject]
) -> Iterator[str]:
    """What joined, left or changed places; those who did are taken out of both."""
    common = [name for name in old if name in now]
    if common != [name for name in now if name in old]:
        yield f"the order of the {what}s changed"
    for name in [name for name in old if name not in now]:
        del old[name]
        yield f"the {what} {name!r} was removed"
    for name in [name for name in now if name not in old]:
        del now[name]
        yield f"the {what} {name!r} was added"


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _leaves(value[key], f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def _field_sentences(old: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for field in sorted(old.keys() | now.keys()):
        if _only_filled(field, old, now) or _only_filled(field, now, old):
            continue
        if field not in now:
            yield f"{field} was {_show(old[field])} and is not there any more"
        elif field not in old:
            yield f"{field} was not there and is {_show(now[field])}"
        elif canonical.dumps(old[field]) != canonical.dumps(now[field]):
            yield f"{field} was {_show(old[field])} and is {_show(now[field])}"


def _only_filled(field: str, empty: Mapping[str, Any], full: Mapping[str, Any]) -> bool:
    """Whether `field` is empty in one and has fields in the other, which speak for themselves."""
    is_empty = field in empty and empty[field] in (None, {})
    return is_empty and any(name.startswith(f"{field}.") for name in full)


def _file_sentences(old: JsonObject, now: JsonObject) -> Iterator[str]:
    for phase in sorted(old.keys() | now.keys()):
        before = {file["name"]: file for file in old.get(phase, [])}
        after = {file["name"]: file for file in now.get(phase, [])}
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield f"{name} is no longer among the {phase}'s files"
            elif name not in before:
                yield f"{name} was added to the {phase}'s files"
            elif before[name]["sha256"] != after[name]["sha256"]:
                yield f"{name} changed (a file of the {phase})"
            elif before[name] != after[name]:
                yield f"{name} changed in whether it is executable (a file of the {phase})"


def _task_sentences(old: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for what, ids in (
        ("removed", [task for task in old if task not in now]),
        ("added", [task for task in now if task not in old]),
        ("changed", [task for task in now if task in old and old[task] != now[task]]),
    ):
        if ids:
            noun = "1 task was" if len(ids) == 1 else f"{len(ids):,} tasks were"
            yield f"{noun} {what}: {_few(ids)}"


def _few(ids: Sequence[str]) -> str:
    rest = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


def _show(value: Any) -> str:
    text = canonical.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
