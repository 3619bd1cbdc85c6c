"""Read the rows of a SWE-bench data set, and files of predictions for them.

Rows have the columns for version 5 of the `swebench` package, as JSONL, a JSON array or Parquet.
The package prepares each row, so that containers run the package's own script. A file without
usable rows, such as for version 4, is one problem.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labledger.benchmarks.file_forms import as_json_text
from labledger.benchmarks.formats import ReadingNote, RefusedTask
from labledger.benchmarks.swebench.harness import (
    HarnessFailed,
    PreparedRow,
    prepare_rows,
)
from labledger.benchmarks.task_file import TaskFileRow, json_rows, read_content, tasks_of_rows
from labledger.errors import InvalidInput, Problem
from labledger.files.project_files import ProjectFiles
from labledger.records import JsonObject
from labledger.resources import require_for
from labledger.text.words import counted

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_LISTED = 3
_MAX_COLUMNS = 8
"""The most columns that a note names."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """The patches that one model predicted."""

    model: str
    patches: dict[str, str] = field(default_factory=dict)
    """The patches by instance id; empty if the model changed nothing."""

    @property
    def variant_id(self) -> str:
        """The model's name, with characters replaced that an id cannot have."""
        name = _NOT_IN_A_NAME.sub("__", self.model).lstrip("_.-")[:64]
        return name or "predictions"


def read_predictions(location: str, instance_ids: Collection[str]) -> Predictions:
    """Return the predictions in a file. Raises `InvalidInput` with every problem.

    The file has JSON lines, a JSON array, or a JSON object by instance id. Each prediction has
    `instance_id`, `model_patch` and `model_name_or_path`, and all have the same model.
    `instance_ids` are the ids of the data set. As in the package, a prediction for another id is a
    problem.
    """
    path = Path(location)
    what = f"cannot read predictions:{location}"
    project = ProjectFiles.of_location(path, f"predictions:{location}", is_allowed_by_name=False)
    content = as_json_text(what, path, read_content(what, path, project))
    problems: list[Problem] = []
    models: set[str] = set()
    patches: dict[str, str] = {}
    for line, item in _items(what, path, content):
        problem = _problem(item, patches)
        if problem is not None:
            problems.append(Problem(str(path), problem[1], line, problem[0]))
            continue
        models.add(item.get("model_name_or_path") or "None")
        patches[item["instance_id"]] = item["model_patch"] or ""
    unknown = sorted(set(patches) - set(instance_ids))
    if unknown:
        named = ", ".join(unknown[:_LISTED]) + (", …" if len(unknown) > _LISTED else "")
        message = f"{counted(len(unknown), 'prediction')} for no instance of the data set: {named}"
        problems.append(Problem(str(path), message))
    if len(models) > 1:
        message = f"has predictions of several models: {', '.join(sorted(models))}"
        problems.append(Problem(str(path), message, hint="make a file of each"))
    if not patches and not problems:
        problems.append(Problem(str(path), "contains no prediction"))
    if problems:
        raise InvalidInput(what, problems)
    return Predictions(models.pop(), patches)


def _problem(item: Any, earlier: Collection[str]) -> tuple[str, str] | None:
    """Return the field and the problem of a prediction; None if it is valid."""
    if not isinstance(item, dict):
        return "", "expected a JSON object"
    if not isinstance(item.get("instance_id"), str):
        return "instance_id", "is missing"
    if item["instance_id"] in earlier:
        return "instance_id", f"{item['instance_id']} already has a prediction"
    if "model_patch" not in item or not isinstance(item["model_patch"], str | None):
        return "model_patch", "expected text or null"
    if not isinstance(item.get("model_name_or_path"), str | None):
        return "model_name_or_path", "expected text"
    return None


def _items(what: str, path: Path, content: bytes) -> list[tuple[int | None, Any]]:
    """Return the predictions, with line numbers if the file has one per line."""
    try:
        text = content.decode()
        try:
            whole = json.loads(text)
        except ValueError:
            lines = enumerate(text.split("\n"), 1)
            return [(line, _parse(path, line, item)) for line, item in lines if item.strip()]
    except UnicodeDecodeError as error:
        raise InvalidInput(what, [Problem(str(path), f"is not UTF-8: {error}")]) from error
    except InvalidInput as error:
        raise InvalidInput(what, error.problems) from error
    if isinstance(whole, dict) and "instance_id" in whole:
        return [(1, whole)]
    items = list(whole.values()) if isinstance(whole, dict) else whole
    if not isinstance(items, list):
        raise InvalidInput(what, [Problem(str(path), "expected predictions")])
    return [(None, item) for item in items]


def _parse(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput("JSON", [Problem(str(path), f"is not JSON: {error}", line)]) from error


_NEEDED = ("instance_id", "repo", "base_commit", "image", "eval_script", "log_parser")
_OF_VERSION_5 = ("image", "eval_script", "log_parser")
"""The columns that no earlier version has."""
_DEFAULTS = {
    **dict.fromkeys(("version", "problem_statement", "patch", "test_patch"), ""),
    "eval_type": "pass_and_fail",
}
"""The optional columns, with their default values."""
_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_NOT_USED = (
    *("created_at", "datasets", "difficulty", "environment_setup_commit", "hints_text"),
    *("image_assets", "split"),
)
_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_IMAGE = re.compile(r"[^\s$]+")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True, slots=True)
class SwebenchRow:
    """One checked row."""

    fields: JsonObject
    """The text columns, and the two lists of tests."""
    split: str | None
    assets: tuple[str, ...]
    """Binary files that the row's patches need."""
    missing: tuple[str, ...] = ()
    """The missing columns without which it cannot run."""
    unknown: tuple[str, ...] = ()
    """The unused columns."""
    given: frozenset[str] = frozenset()
    """The optional columns that have a value."""

    @property
    def instance_id(self) -> str:
        return str(self.fields["instance_id"])

    def text(self, column: str) -> str:
        return str(self.fields[column])

    def has(self, column: str) -> bool:
        """Return whether the file has a value for an optional column."""
        return column in self.given


@dataclass(frozen=True, slots=True)
class SweBenchRows:
    """The usable rows of a file, as the package prepared them, and the refused ones."""

    rows: tuple[tuple[SwebenchRow, PreparedRow], ...]
    refused: tuple[RefusedTask, ...]
    split: str
    digest: str
    """The SHA-256 (hex) of the file."""
    notes: tuple[ReadingNote, ...] = ()
    """Notes about unused columns, and about the defaults of missing columns."""


def read_dataset(location: str) -> SweBenchRows:
    """Return the rows of a file. Raises `InvalidInput` with every problem, and `ExtraMissing`."""
    require_for("reading swebench:FILE", "swebench", "swebench")
    what, path = f"cannot read swebench:{location}", Path(location)
    content = read_content(what, path, ProjectFiles.of_location(path, f"swebench:{location}"))
    if content[:4] == b"PAR1":
        numbered: Iterator[TaskFileRow | Problem] = _parquet_rows(what, path, content)
    else:
        numbered = json_rows(path, as_json_text(what, path, content))
    all_rows = tasks_of_rows(what, path, numbered, _read_row, "swebench", id_key="instance_id")
    rows = [row for row in all_rows if not row.missing]
    if not rows:
        raise InvalidInput(what, [_of_another_version(path, all_rows)])
    try:
        prepared = prepare_rows([row.fields for row in rows])
    except HarnessFailed as error:
        raise InvalidInput(what, [Problem(str(path), error.message)]) from error
    usable = []
    refused = [
        RefusedTask(row.instance_id, f"the row has no {', no '.join(row.missing)}")
        for row in all_rows
        if row.missing
    ]
    for row, outcome in zip(rows, prepared, strict=True):
        if isinstance(outcome, str):
            refused.append(RefusedTask(row.instance_id, outcome))
        elif row.assets:
            reason = (
                f"its patches need binary files ({row.assets[0]}, …), which are not supported; "
                "what would be needed: to fetch and to deliver image_assets"
            )
            refused.append(RefusedTask(row.instance_id, reason))
        else:
            usable.append((row, outcome))
    splits = {row.split for row in rows if row.split}
    split = splits.pop() if len(splits) == 1 else "test"
    digest = hashlib.sha256(content).hexdigest()
    notes = tuple(_notes(path, all_rows))
    return SweBenchRows(tuple(usable), tuple(refused), split, digest, notes)


def _of_another_version(path: Path, rows: Sequence[SwebenchRow]) -> Problem:
    """Return the one problem of a file without usable rows."""
    missing = [
        column for column in (*_NEEDED, *_TESTS) if all(column in row.missing for row in rows)
    ]
    columns = ", ".join(f"no `{column}`" for column in missing) or "columns that are not set"
    is_older = set(missing) >= set(_OF_VERSION_5)
    kind = "rows for version 4 of the swebench package or earlier" if is_older else "rows"
    return Problem(
        str(path),
        f"has {len(rows):,} {kind} ({columns}); labledger reads rows for version 5",
        hint="data sets for version 5 have the columns " + ", ".join(_OF_VERSION_5),
    )


def _notes(path: Path, rows: Sequence[SwebenchRow]) -> Iterator[ReadingNote]:
    unknown = sorted({column for row in rows for column in row.unknown})
    if unknown:
        columns = ", ".join(unknown[:_MAX_COLUMNS]) + (", …" if len(unknown) > _MAX_COLUMNS else "")
        yield ReadingNote(f"columns that are not used: {columns}", where=str(path))
    absent = [column for column in _DEFAULTS if not any(row.has(column) for row in rows)]
    if absent:
        taken = ", ".join(f"{column} is {_DEFAULTS[column] or 'empty'}" for column in absent)
        message = f"no row has {', '.join(absent)}: {taken}"
        yield ReadingNote(message, where=str(path), is_ignored=False)


def _parquet_rows(what: str, path: Path, content: bytes) -> Iterator[TaskFileRow]:
    """Yield the rows of a Parquet file. The line of each is its number."""
    require_for(f"reading {path.name}", "swebench", "pyarrow")
    import pyarrow
    from pyarrow import parquet

    try:
        rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(what, [Problem(str(path), f"is no Parquet file: {error}")]) from error
    for number, fields in enumerate(rows, 1):
        yield TaskFileRow(path, number, fields)


def _read_row(row: TaskFileRow) -> SwebenchRow:
    missing = tuple(c for c in (*_NEEDED, *_TESTS) if row.fields.get(c) is None)
    known = {*_NEEDED, *_DEFAULTS, *_TESTS, *_NOT_USED}
    unknown = tuple(column for column in row.fields if column not in known)
    fields: JsonObject = {c: row.text(c) for c in _NEEDED if c not in missing}
    given = {c: row.text(c) for c in _DEFAULTS if row.fields.get(c) is not None}
    fields |= _DEFAULTS | given
    fields |= {column: _tests(row, column) for column in _TESTS if column not in missing}
    patterns = {"instance_id": _INSTANCE_ID, "image": _IMAGE, "base_commit": _COMMIT}
    for column, pattern in patterns.items():
        # A missing value has its own problem.
        if fields.get(column) and not pattern.fullmatch(fields[column]):
            row.add_problem(column, f"found {fields[column]!r}, which is none")
    for column in ("instance_id", "image", "eval_script"):
        if row.fields.get(column) == "":
            row.add_problem(column, "is empty")
    split = row.fields.get("split")
    if "instance_id" in missing:
        row.add_problem("instance_id", "is missing")
    split = split if isinstance(split, str) else None
    return SwebenchRow(fields, split, _assets(row), missing, unknown, frozenset(given))


def _tests(row: TaskFileRow, column: str) -> list[str]:
    """Return a list of tests. Data sets have it as a list or as JSON text."""
    value = _parsed(row.fields.get(column))
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        row.add_problem(column, "expected a list of text")
        return []
    return value


def _assets(row: TaskFileRow) -> tuple[str, ...]:
    """Return the paths of the binary files of the row's patches."""
    value = _parsed(row.fields.get("image_assets") or {})
    if not isinstance(value, dict):
        row.add_problem("image_assets", "expected an object")
        return ()
    entries = [*(value.get("test_patch") or []), *(value.get("patch") or [])]
    return tuple(str(entry["path"] if isinstance(entry, dict) else entry) for entry in entries)


def _parsed(value: Any) -> Any:
    """Return a value parsed from JSON text; None if the text is not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
