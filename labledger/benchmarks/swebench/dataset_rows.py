"""Read the rows of a SWE-bench data set, and files of predictions for them.

Rows have the columns of data sets for version 5 of the `swebench` package, as JSONL, a JSON array
or Parquet. The package itself prepares each row, so that what runs in the containers is what it
would run; a row that needs what the package does in its own containers alone is refused. A file of
predictions has the form that the package accepts, and holds those of one model.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labledger.benchmarks.formats import RefusedTask
from labledger.benchmarks.swebench.harness import (
    HarnessFailed,
    PreparedRow,
    prepare_rows,
)
from labledger.benchmarks.task_file import TaskRow, json_rows, read_content, tasks_of_rows
from labledger.errors import InvalidInput, Problem
from labledger.files.project_files import ProjectFiles
from labledger.records import JsonObject
from labledger.resources import require_for
from labledger.text import counted

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_LISTED = 3


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of one model."""

    model: str
    patches: dict[str, str] = field(default_factory=dict)
    """By instance id; empty where the model left no change."""

    @property
    def variant_id(self) -> str:
        """The model's name with what a variant's id cannot hold replaced."""
        name = _NOT_IN_A_NAME.sub("__", self.model).lstrip("_.-")[:64]
        return name or "predictions"


def read_predictions(location: str, instance_ids: Collection[str]) -> Predictions:
    """Return the predictions in a file. Raises `InvalidInput` with every problem.

    The file has JSON lines, a JSON array, or a JSON object by instance id; each prediction has
    `instance_id`, `model_patch` and `model_name_or_path`. `instance_ids` are those of the data set;
    a prediction for another is a problem, as it is for the package.
    """
    path = Path(location)
    what = f"cannot read predictions:{location}"
    project = ProjectFiles.of_location(path, f"predictions:{location}", is_allowed_by_name=False)
    content = read_content(what, path, project)
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
    """Return the field and what is wrong with a prediction, None if nothing is."""
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
    """Return the predictions, with their lines if the file has one a line."""
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
    require_for("reading swebench:FILE", "swebench", "swebench")
    what, path = f"cannot read swebench:{location}", Path(location)
    content = read_content(what, path, ProjectFiles.of_location(path, f"swebench:{location}"))
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
