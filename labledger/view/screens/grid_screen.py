"""The grid of a run: a letter for each replication of each task and variant, by pages of tasks."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from labledger.errors import InvalidInput, Problem
from labledger.ledger.reading.progress_rows import BEGUN, LEGEND, NEVER_RAN, NOT_BEGUN, TaskCells
from labledger.ledger.rows.control_requests import Controls
from labledger.records import JsonObject
from labledger.view.ledgers import DocumentSource, read_graded_run
from labledger.view.parameters import Parameters

PARAMETERS = ("from", "limit", "outcome", "q", "row")
PAGE = 200
_MAX_PAGE = 1000


def document(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return a page of matching tasks with their cells, from a task or from a row on."""
    graded, run = read_graded_run(source.reader, parameters.run_id)
    scored_id = graded.run.run_id
    text, letters = parameters.text("q") or "", parameters.text("outcome") or ""
    _check_letters(letters)

    def find() -> list[int]:
        return source.reader.tasks_with(scored_id, text, letters)

    has_open = bool(set(letters) & {BEGUN, NOT_BEGUN})
    version = (
        run.next_schedule_idx if letters else None,
        len(source.reader.open_slots(run.run_id)) if has_open else None,
        run.total_slots,
    )
    key, has_ended = (scored_id, "tasks", text, letters), not source.ledger.is_owned(run)
    fitting = source.kept.get(key, version, find, is_final=has_ended).value
    row = bisect_left(fitting, parameters.number("from", 0))
    row = parameters.number("row", row)
    limit = parameters.number("limit", PAGE, 1, _MAX_PAGE)
    shown_tasks = fitting[row : row + limit]
    variants = [variant.variant_id for variant in run.variants]
    cells = source.reader.grid(scored_id, shown_tasks)
    controls = Controls.of(source.ledger.control_requests(run.run_id))
    if controls.cancellations:
        cells = [_with_cancelled(task, controls) for task in cells]
    rest = fitting[row + limit : row + limit + 1]
    return {
        "run_id": parameters.run_id,
        "q": text,
        "outcome": letters,
        "variants": variants,
        "replications": max((len(s) for task in cells for s in task.letters.values()), default=1),
        "legend": dict(LEGEND),
        "committed": run.next_schedule_idx,
        "total_tasks": len(fitting),
        "from": shown_tasks[0] if shown_tasks else None,
        "row": row,
        "next": rest[0] if rest else None,
        "tasks": [
            {
                "task_idx": task.task_idx,
                "task_id": task.task_id,
                # A run that was extended may have no slot of a variant for a task.
                "cells": {variant: task.letters.get(variant, "") for variant in variants},
                "slots": {variant: list(task.slots.get(variant, ())) for variant in variants},
            }
            for task in cells
        ],
    }


@dataclass(frozen=True, slots=True)
class _Cell:
    schedule_idx: int
    variant_id: str
    task_id: str


def _with_cancelled(task: TaskCells, controls: Controls) -> TaskCells:
    """Return the cells of a task, with cancelled slots shown as never run."""
    letters = {
        variant: "".join(
            NEVER_RAN
            if letter == NOT_BEGUN and controls.cancellation(_Cell(idx, variant, task.task_id))
            else letter
            for letter, idx in zip(of_variant, task.slots[variant], strict=True)
        )
        for variant, of_variant in task.letters.items()
    }
    return replace(task, letters=letters)


def _check_letters(letters: str) -> None:
    if not set(letters) <= set(LEGEND):
        message = f"found {letters[:80]!r}; expected some of {''.join(LEGEND)}"
        raise InvalidInput("the request", [Problem("outcome", message)])
