"""Find the differences between a run's experiment and another, and whether it may extend the run.

A run may continue only with an experiment that gives the same results. If it grows, its existing
cells must stay the same. Each sentence names one difference, and callers decide whether it is an
error or a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labledger.experiment.plan import ExperimentPlan, result_part
from labledger.experiment.resolve import ResolvedExperiment
from labledger.records import JsonObject, canonical_json
from labledger.records.identity import Slot
from labledger.text.words import counted

_MAX_NAMED_TASKS = 3
"""How many task ids a sentence lists."""

_MAX_VALUE_CHARACTERS = 80
"""How many characters of a value a sentence quotes."""


def differences(
    old_document: JsonObject, old_task_digests: Mapping[str, str], new: ResolvedExperiment
) -> list[str]:
    """Return a sentence for each difference that can change a result; empty if there is none.

    `old_document` is the run's `resolved_experiment_v1`, `old_task_digests` its tasks' digests by
    task id. Concurrency, name, description, tags and the dataset's path may differ.
    """
    new_digests = {task.task_id: task.digest for task in new.tasks}
    return document_differences(old_document, old_task_digests, new.document, new_digests)


def is_of_grader(difference: str) -> bool:
    """Return whether a sentence of `differences` is only about the grader."""
    return difference.startswith("grader.") or difference.endswith(
        ("(a file of the grader)", "the grader's files")
    )


def is_of_selection(difference: str) -> bool:
    """Return whether a sentence of `changes` names cells that a narrower selection leaves out."""
    return "removed" in difference or "cannot be found in the experiment" in difference


def document_differences(
    old_document: JsonObject,
    old_task_digests: Mapping[str, str],
    new_document: JsonObject,
    new_task_digests: Mapping[str, str],
) -> list[str]:
    """Return the `differences` of two stored experiments."""
    before, after = result_part(old_document), result_part(new_document)
    old_digest, new_digest = before["dataset"].pop("digest"), after["dataset"].pop("digest")
    sentences = _part_sentences(before, after)
    tasks = list(task_sentences(old_task_digests, new_task_digests))
    if not tasks and old_digest != new_digest:
        tasks = ["the order of the tasks changed, or a file for the agents of certain variants"]
    return sentences + tasks


def _part_sentences(before: JsonObject, after: JsonObject) -> list[str]:
    """Return a sentence for each difference of two result parts. Both are used up."""
    sentences = list(file_sentences(before.pop("files"), after.pop("files")))
    sentences += image_sentences(before.pop("images", {}), after.pop("images", {}))
    for noun, key, id_key in (("variant", "variants", "variant_id"), ("metric", "metrics", "id")):
        before[key], after[key] = items_by_id(before[key], id_key), items_by_id(after[key], id_key)
        sentences += membership_sentences(noun, before[key], after[key])
    sentences += _agent_folder_sentences(before["variants"], after["variants"])
    return [*sentences, *field_sentences(before, after)]


def _agent_folder_sentences(old: JsonObject, new: JsonObject) -> Iterator[str]:
    """Yield a sentence for each variant with changed files in its agent's folder.

    Remove the digests from `old` and `new`, so that they are not reported as fields, too.
    """
    for name in [name for name in old if name in new]:
        profiles = [variants[name].get("profile") or {} for variants in (old, new)]
        if "source_sha256" in profiles[0] and "source_sha256" in profiles[1]:
            before, after = (profile.pop("source_sha256") for profile in profiles)
            if before != after:
                agent = profiles[1]["profile"]
                yield f"a file in the folder of the agent {agent!r} changed (variant {name!r})"


def items_by_id(items: Sequence[JsonObject], name: str) -> dict[str, JsonObject]:
    """Return items by the value of their key `name`."""
    return {item[name]: item for item in items}


def membership_sentences(
    noun: str, old: dict[str, JsonObject], new: dict[str, JsonObject]
) -> Iterator[str]:
    """Yield a sentence for each added, removed or reordered item.

    Delete added and removed items from `new` and `old`, so that their fields are not reported too.
    """
    common = [name for name in old if name in new]
    if common != [name for name in new if name in old]:
        yield f"the order of the {noun}s changed"
    for name in [name for name in old if name not in new]:
        del old[name]
        yield f"the {noun} {name!r} was removed"
    for name in [name for name in new if name not in old]:
        del new[name]
        yield f"the {noun} {name!r} was added"


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _leaves(value[key], f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def field_sentences(before: JsonObject, after: JsonObject) -> Iterator[str]:
    """Yield a sentence for each field of two documents that differs."""
    old, new = dict(_leaves(before, "")), dict(_leaves(after, ""))
    for field in sorted(old.keys() | new.keys()):
        if _is_replaced_by_fields(field, old, new) or _is_replaced_by_fields(field, new, old):
            continue
        if field not in new:
            yield f"{field} was {_shortened(old[field])} and is no longer set"
        elif field not in old:
            yield f"{field} was not set and is {_shortened(new[field])}"
        elif canonical_json.dumps(old[field]) != canonical_json.dumps(new[field]):
            yield f"{field} was {_shortened(old[field])} and is {_shortened(new[field])}"


def _is_replaced_by_fields(field: str, empty: Mapping[str, Any], filled: Mapping[str, Any]) -> bool:
    """Return whether `field` is empty in one and has reported fields in the other."""
    is_empty = field in empty and empty[field] in (None, {})
    return is_empty and any(name.startswith(f"{field}.") for name in filled)


def file_sentences(old: JsonObject, new: JsonObject) -> Iterator[str]:
    """Yield a sentence for each staged file, by phase, that differs."""
    for phase in sorted(old.keys() | new.keys()):
        before, after = (items_by_id(files.get(phase, []), "name") for files in (old, new))
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield f"{name} is no longer among the {phase}'s files"
            elif name not in before:
                yield f"{name} was added to the {phase}'s files"
            elif before[name]["sha256"] != after[name]["sha256"]:
                yield f"{name} changed (a file of the {phase})"
            elif before[name] != after[name]:
                yield f"{name} became executable or not executable (a file of the {phase})"


def image_sentences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each image whose build, by its digest, differs."""
    for ref in sorted(old.keys() & new.keys()):
        if old[ref] != new[ref]:
            yield f"the build of the image {ref} changed"
    for ref in sorted(old.keys() - new.keys()):
        yield f"the image {ref} is no longer built from files of the experiment"
    for ref in sorted(new.keys() - old.keys()):
        yield f"the image {ref} is now built from files of the experiment"


def task_sentences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences for the tasks, by their digests, that differ."""
    for change, ids in (
        ("removed", [task for task in old if task not in new]),
        ("added", [task for task in new if task not in old]),
        ("changed", [task for task in new if task in old and old[task] != new[task]]),
    ):
        if ids:
            noun = "1 task was" if len(ids) == 1 else f"{len(ids):,} tasks were"
            yield f"{noun} {change}: {_first_ids(ids)}"


def _first_ids(ids: Sequence[str]) -> str:
    rest = len(ids) - _MAX_NAMED_TASKS
    return ", ".join(ids[:_MAX_NAMED_TASKS]) + (f" and {rest:,} more" if rest > 0 else "")


def _shortened(value: Any) -> str:
    text = canonical_json.dumps(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[: _MAX_VALUE_CHARACTERS - 1]}…"


Cell = tuple[str, str, int]
"""Variant id, task id, and number of the replication."""

_AGENTS_PHASES = frozenset({"setup", "agent"})
"""Phases whose commands and files belong to the variants."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The new variants, tasks and slots that an experiment adds to a run."""

    experiment: ResolvedExperiment
    first_idx: int
    """How many slots the run has."""
    existing: frozenset[Cell]
    """The cells of these slots."""
    variants: tuple[str, ...]
    """Ids of the new variants, in the experiment's order."""
    tasks: frozenset[str]
    """Ids of the new tasks."""
    slot_count: int

    def slots(self) -> Iterator[Slot]:
        """Yield the new slots in the order that they have in the experiment."""
        new = (slot for slot in self.experiment.slots() if _cell(slot) not in self.existing)
        for idx, slot in enumerate(new, self.first_idx):
            yield replace(slot, schedule_idx=idx)

    def frozen_tasks(self) -> Iterator[tuple[str, str, JsonObject]]:
        """Yield id, digest and frozen row of each new task, read from the file again."""
        for task, row in self.experiment.frozen_tasks():
            if task.task_id in self.tasks:
                yield task.task_id, task.digest, row


def find_growth(
    experiment: ResolvedExperiment,
    slots: Iterable[Slot],
    variants: Iterable[str],
    tasks: Iterable[str],
) -> Growth:
    """Return the growth of a run, which has these slots and ids of variants and tasks."""
    all_slots = list(slots)
    existing = frozenset(map(_cell, all_slots))
    known_variants, known_tasks = set(variants), set(tasks)
    return Growth(
        experiment,
        len(all_slots),
        existing,
        tuple(name for name in experiment.variants if name not in known_variants),
        frozenset(task.task_id for task in experiment.tasks) - known_tasks,
        sum(_cell(slot) not in existing for slot in experiment.slots()),
    )


def changes(
    old_document: JsonObject, old_row_digests: Mapping[str, str], growth: Growth
) -> list[str]:
    """Return a sentence for each difference that concerns cells that the run has.

    `old_document` is the run's `resolved_experiment_v1`, `old_row_digests` the digests of its
    tasks' frozen rows by task id. New cells are no difference.
    """
    new = growth.experiment
    before, after = result_part(old_document), result_part(new.document)
    for part in (before, after):
        del part["dataset"]["digest"]
    after["files"] = _without_new_files(after["files"], growth, old_document)
    images = after.pop("images", {})
    after["images"] = {ref: images[ref] for ref in images if ref in before.get("images", {})}
    # The order of the variants does not affect existing cells.
    variants = items_by_id(after["variants"], "variant_id")
    names = [variant["variant_id"] for variant in before["variants"]]
    after["variants"] = [variants[name] for name in names if name in variants]
    if after["design"]["replications"] > before["design"]["replications"]:
        after["design"]["replications"] = before["design"]["replications"]
    sentences = _part_sentences(before, after)
    rows = {task.task_id: task.row_digest for task in new.tasks if task.task_id in old_row_digests}
    sentences += task_sentences(old_row_digests, rows)
    if not sentences:
        missing = growth.existing.difference(map(_cell, new.slots()))
        if missing:
            variant_id, task_id, repl_idx = min(missing)
            sentences.append(
                f"{counted(len(missing), 'trial')} of the run cannot be found in the experiment, "
                f"such as variant {variant_id!r}, task {task_id!r}, replication {repl_idx}"
            )
    return sentences


def _without_new_files(files: JsonObject, growth: Growth, old_document: JsonObject) -> JsonObject:
    """Return the staged files without the files for new variants or new tasks only.

    `with_origins` hides those files from all other trials.
    """
    known = {
        (phase, f["name"]) for phase, entries in old_document["files"].items() for f in entries
    }

    def is_for_new_cells(phase: str, name: str) -> bool:
        brings = growth.variants if phase in _AGENTS_PHASES else growth.tasks
        return bool(brings) and (phase, name) not in known

    return {
        phase: [f for f in entries if not is_for_new_cells(phase, f["name"])]
        for phase, entries in files.items()
    }


def with_origins(plan: ExperimentPlan, old: ExperimentPlan, first_idx: int) -> ExperimentPlan:
    """Return a plan whose staged files say which part of the run brought them.

    `old` is the plan of the run so far, `first_idx` the first slot of the new part.
    """
    since = {(phase, f.name): f.since for phase, staged in old.files.items() for f in staged}
    files = {
        phase: tuple(replace(f, since=since.get((phase, f.name), first_idx)) for f in staged)
        for phase, staged in plan.files.items()
    }
    return replace(plan, files=files)


def _cell(slot: Slot) -> Cell:
    return slot.variant_id, slot.task_id, slot.repl_idx
