"""Find out how an experiment extends a run, and whether it leaves the run's cells as they are.

A run may grow by tasks, variants and replications. What its cells were run with must be the same in
the new experiment: each task by the digest of its whole row, all else by its value. The sentences
of `changes` name what differs. Used by `runner.extend`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from labledger.experiment.changes import (
    field_sentences,
    file_sentences,
    image_sentences,
    items_by_id,
    membership_sentences,
    task_sentences,
)
from labledger.experiment.plan import result_part
from labledger.experiment.resolve import ResolvedExperiment
from labledger.records import JsonObject
from labledger.records.identity import Slot
from labledger.text.phrases import counted

Cell = tuple[str, str, int]
"""Variant id, task id, and number of the replication."""

_AGENTS_PHASES = frozenset({"setup", "agent"})
"""Phases whose commands, and so files, are those of the variants."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What an experiment adds to a run."""

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
    """Return what an experiment adds to a run with these slots, and ids of variants and tasks."""
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
    tasks' frozen rows by task id. What is only new is no difference.
    """
    new = growth.experiment
    before, after = result_part(old_document), result_part(new.document)
    for part in (before, after):
        del part["dataset"]["digest"]
    sentences = list(
        file_sentences(
            before.pop("files"), _without_new_files(after.pop("files"), growth, old_document)
        )
    )
    old_images, new_images = before.pop("images", {}), after.pop("images", {})
    kept = {ref: digest for ref, digest in new_images.items() if ref in old_images}
    sentences += image_sentences(old_images, kept)
    before["variants"] = items_by_id(before["variants"], "variant_id")
    after["variants"] = items_by_id(after["variants"], "variant_id")
    for name in growth.variants:
        after["variants"].pop(name, None)
    # Their order says nothing about cells that exist.
    kept_names = [name for name in before["variants"] if name in after["variants"]]
    after["variants"] = {name: after["variants"][name] for name in kept_names}
    sentences += membership_sentences("variant", before["variants"], after["variants"])
    before["metrics"] = items_by_id(before["metrics"], "id")
    after["metrics"] = items_by_id(after["metrics"], "id")
    sentences += membership_sentences("metric", before["metrics"], after["metrics"])
    old_count = before["design"].pop("replications")
    new_count = after["design"].pop("replications")
    if new_count < old_count:
        sentences.append(f"design.replications was {old_count} and is {new_count}")
    sentences += field_sentences(before, after)
    rows = {task.task_id: task.row_digest for task in new.tasks if task.task_id in old_row_digests}
    sentences += task_sentences(old_row_digests, rows)
    if not sentences:
        missing = growth.existing.difference(map(_cell, new.slots()))
        if missing:
            variant_id, task_id, repl_idx = min(missing)
            sentences.append(
                f"{counted(len(missing), 'slot')} of the run cannot be found in the experiment, "
                f"such as variant {variant_id!r}, task {task_id!r}, replication {repl_idx}"
            )
    return sentences


def _without_new_files(files: JsonObject, growth: Growth, old_document: JsonObject) -> JsonObject:
    """Return the staged files without those that only new variants can have brought."""
    if not growth.variants:
        return files
    known = {
        phase: {file["name"] for file in entries}
        for phase, entries in old_document["files"].items()
    }
    return {
        phase: [
            file
            for file in entries
            if phase not in _AGENTS_PHASES or file["name"] in known.get(phase, ())
        ]
        for phase, entries in files.items()
    }


def _cell(slot: Slot) -> Cell:
    return slot.variant_id, slot.task_id, slot.repl_idx
