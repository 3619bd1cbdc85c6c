"""The selected tasks of a benchmark, the tasks that cannot be run, and ignored keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from labledger.benchmarks.formats import ReadingNote, RefusedTask, TranslatedBenchmark
from labledger.errors import InvalidInput, Parameter, Problem
from labledger.text.words import counted, counted_of, named_briefly, near_names

_MAX_NEAR_TASKS = 3
"""The most task ids that a hint names."""
_MAX_NAMED = 3
"""The most tasks that a note about many tasks names."""


def require_no_refused(benchmark: TranslatedBenchmark, globs: Sequence[str]) -> None:
    """Raise `InvalidInput` with every refused task that `globs` select. Without globs, all are."""
    refused = refusals(benchmark, globs)
    if refused:
        raise InvalidInput(
            f"{benchmark.name} has tasks that cannot be run",
            refused,
            hint="choose others with `tasks=`, or leave them out with `skip_refused=True`",
        )


def require_known_tasks(benchmark: TranslatedBenchmark, globs: Sequence[str]) -> None:
    """Raise `InvalidInput` for each glob that matches no task, not even a refused one."""
    ids = [
        *(row["id"] for row in benchmark.tasks),
        *(task.task_id for task in benchmark.refused),
        *benchmark.unread,
    ]
    problems = []
    for glob in globs:
        if not any(fnmatchcase(task_id, glob) for task_id in ids):
            near = near_names(glob, ids, _MAX_NEAR_TASKS) or ids[:_MAX_NEAR_TASKS]
            hint = f"task ids such as {', '.join(near)}"
            message = f"{glob!r} matches none of {len(ids):,} tasks"
            problems.append(Problem(Parameter("tasks"), message, hint=hint))
    if problems:
        raise InvalidInput(f"{benchmark.name} has no such tasks", problems)


def refuse(benchmark: TranslatedBenchmark, reasons: Mapping[str, str]) -> TranslatedBenchmark:
    """Return a benchmark that also refuses the tasks in `reasons`, for these reasons."""
    refused = tuple(RefusedTask(task_id, reason) for task_id, reason in reasons.items())
    return replace(
        benchmark,
        tasks=tuple(row for row in benchmark.tasks if row["id"] not in reasons),
        refused=tuple(sorted((*benchmark.refused, *refused), key=lambda task: task.task_id)),
    )


def require_some_selected(benchmark: TranslatedBenchmark, globs: Sequence[str]) -> None:
    """Raise `InvalidInput` with every refused task if no usable task is selected."""
    if not any(selects(globs, row["id"]) for row in benchmark.tasks):
        message = f"{benchmark.name} has no selected task that can be run"
        raise InvalidInput(message, refusals(benchmark, globs))


def refusals(benchmark: TranslatedBenchmark, globs: Sequence[str] = ()) -> list[Problem]:
    """Return a problem for each refused task that `globs` select."""
    return [
        Problem(task.task_id, task.reason)
        for task in benchmark.refused
        if selects(globs, task.task_id)
    ]


def selects(globs: Sequence[str], task_id: str) -> bool:
    """Return whether `globs` select a task. Without globs, every task is selected."""
    return not globs or any(fnmatchcase(task_id, glob) for glob in globs)


def refuse_ignored(benchmark: TranslatedBenchmark) -> TranslatedBenchmark:
    """Return a benchmark that refuses each task with an ignored key or value.

    Raises `InvalidInput` for ignored keys and values outside the tasks.
    """
    reasons: dict[str, list[str]] = {}
    problems: list[Problem] = []
    for note in benchmark.notes:
        if note.is_ignored and note.task_id is not None:
            reasons.setdefault(note.task_id, []).append(_located(note))
        elif note.is_ignored:
            problems.append(Problem(note.where or benchmark.name, note.message))
    if problems:
        hint = "without `strict=True`, labledger ignores it"
        raise InvalidInput(
            f"{benchmark.name} has keys or values that are ignored", problems, hint=hint
        )
    runs = {row["id"] for row in benchmark.tasks}
    strict = {task_id: "; ".join(texts) for task_id, texts in reasons.items() if task_id in runs}
    others = tuple(
        replace(task, reason="; ".join([task.reason, *reasons.get(task.task_id, ())]))
        for task in benchmark.refused
    )
    notes = tuple(note for note in benchmark.notes if not note.is_ignored)
    return refuse(replace(benchmark, refused=others, notes=notes), strict)


def skipped_warning(benchmark: TranslatedBenchmark) -> str | None:
    """Return a warning about the tasks that an experiment leaves out; None if it has all."""
    skipped = [task.task_id for task in benchmark.refused]
    if not skipped:
        return None
    total = len(benchmark.tasks) + len(skipped)
    return (
        f"{counted_of(len(benchmark.tasks), total, 'task')} can be run; dataset.skipped says why "
        f"the others cannot: {named_briefly(skipped, _MAX_NAMED)}"
    )


def warnings_of(benchmark: TranslatedBenchmark, globs: Sequence[str] = ()) -> list[str]:
    """Return the notes about the selected tasks as sentences, without repetitions."""
    by_message: dict[str, list[ReadingNote]] = {}
    for note in benchmark.notes:
        if note.task_id is None or selects(globs, note.task_id):
            by_message.setdefault(note.message, []).append(note)
    return [_sentence(notes) for notes in by_message.values()]


def _sentence(notes: Sequence[ReadingNote]) -> str:
    if len(notes) == 1:
        return _located(notes[0])
    tasks = list(dict.fromkeys(note.task_id or "" for note in notes))
    named = named_briefly(tasks, _MAX_NAMED)
    return f"{notes[0].message} (in {counted(len(tasks), 'task')}: {named})"


def _located(note: ReadingNote) -> str:
    return note.message if note.where is None else f"{note.where}: {note.message}"
