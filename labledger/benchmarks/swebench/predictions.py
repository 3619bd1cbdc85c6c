"""Read a file of predictions, as the `swebench` package accepts it.

JSON lines, a JSON array, or a JSON object by instance id; each prediction has `instance_id`,
`model_patch` and `model_name_or_path`. A file holds the predictions of one model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labledger.benchmarks.task_file import read_content
from labledger.errors import InvalidInput, Problem
from labledger.text.phrases import counted

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

    `instance_ids` are those of the data set; a prediction for another is a problem, as it is for
    the package.
    """
    path = Path(location)
    what = f"cannot read predictions:{location}"
    problems: list[Problem] = []
    models: set[str] = set()
    patches: dict[str, str] = {}
    for line, item in _items(what, path, read_content(what, path)):
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
