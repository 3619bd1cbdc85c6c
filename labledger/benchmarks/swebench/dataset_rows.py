"""Read the rows of a SWE-bench data set: JSONL, a JSON array, or Parquet.

The columns are those of data sets for version 5 of the `swebench` package. The package itself
prepares each row, so that what runs in the containers is what it would run. What the package does
in its own containers and this translation cannot is refused for the rows that need it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labledger.benchmarks.protocol import RefusedTask
from labledger.benchmarks.task_file import TaskRow, json_rows, read_content, tasks_of_rows
from labledger.errors import InvalidInput, Problem
from labledger.optional_libraries import require_for
from labledger.records import JsonObject
from labledger.swebench_package.harness import (
    HarnessFailed,
    PreparedRow,
    prepare_rows,
    require_harness,
)

_TEXTS = (
    *("instance_id", "repo", "base_commit", "version", "image", "problem_statement"),
    *("patch", "test_patch", "eval_script", "log_parser", "eval_type"),
)
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
    """One row, checked."""

    fields: JsonObject
    """The columns that are text, and the two lists of tests."""
    split: str | None
    assets: tuple[str, ...]
    """Binary files that the row's patches need and cannot hold."""

    @property
    def instance_id(self) -> str:
        return str(self.fields["instance_id"])

    def text(self, column: str) -> str:
        return str(self.fields[column])


@dataclass(frozen=True, slots=True)
class Dataset:
    """The rows of a file that can be run, as the package prepared them, and the others."""

    rows: tuple[tuple[SwebenchRow, PreparedRow], ...]
    refused: tuple[RefusedTask, ...]
    split: str
    digest: str
    """SHA-256 (hex) of the file."""


def read_dataset(location: str) -> Dataset:
    """Return the rows of a file. Raises `InvalidInput` with every problem, and `ExtraMissing`."""
    require_harness("reading swebench:FILE")
    what, path = f"cannot read swebench:{location}", Path(location)
    content = read_content(what, path)
    is_parquet = content[:4] == b"PAR1"
    numbered = _parquet_rows(what, path, content) if is_parquet else json_rows(path, content)
    rows = tasks_of_rows(what, path, numbered, _read_row, "swebench", id_key="instance_id")
    try:
        prepared = prepare_rows([row.fields for row in rows])
    except HarnessFailed as error:
        raise InvalidInput(what, [Problem(str(path), error.message)]) from error
    usable, refused = [], []
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
    return Dataset(tuple(usable), tuple(refused), split, hashlib.sha256(content).hexdigest())


def _parquet_rows(what: str, path: Path, content: bytes) -> Iterator[TaskRow]:
    """Yield the rows of a Parquet file; the line of each is its number."""
    require_for(f"reading {path.name}", "swebench", "pyarrow")
    import pyarrow
    from pyarrow import parquet

    try:
        rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(what, [Problem(str(path), f"is no Parquet file: {error}")]) from error
    for number, fields in enumerate(rows, 1):
        yield TaskRow(path, number, fields)


def _read_row(row: TaskRow) -> SwebenchRow:
    row.require_known_keys((*_TEXTS, *_TESTS, *_NOT_USED))
    fields: JsonObject = {column: row.text(column) for column in _TEXTS}
    fields |= {column: _tests(row, column) for column in _TESTS}
    patterns = {"instance_id": _INSTANCE_ID, "image": _IMAGE, "base_commit": _COMMIT}
    for column, pattern in patterns.items():
        # What is missing has its own problem.
        if fields[column] and not pattern.fullmatch(fields[column]):
            row.add_problem(column, f"found {fields[column]!r}, which is none")
    for column in ("instance_id", "image", "eval_script"):
        if row.fields.get(column) == "":
            row.add_problem(column, "is empty")
    split = row.fields.get("split")
    return SwebenchRow(fields, split if isinstance(split, str) else None, _assets(row))


def _tests(row: TaskRow, column: str) -> list[str]:
    """Return a list of tests, which data sets hold as a list or as its JSON text."""
    value = _parsed(row.fields.get(column))
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        missing = row.fields.get(column) is None
        row.add_problem(column, "is missing" if missing else "expected a list of text")
        return []
    return value


def _assets(row: TaskRow) -> tuple[str, ...]:
    """Return the paths of the binary files of the row's patches."""
    value = _parsed(row.fields.get("image_assets") or {})
    if not isinstance(value, dict):
        row.add_problem("image_assets", "expected an object")
        return ()
    entries = [*(value.get("test_patch") or []), *(value.get("patch") or [])]
    return tuple(str(entry["path"] if isinstance(entry, dict) else entry) for entry in entries)


def _parsed(value: Any) -> Any:
    """Return the value that a text is the JSON of; None if it is the JSON of nothing."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
