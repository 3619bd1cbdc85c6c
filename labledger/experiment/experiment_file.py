"""Read and validate an experiment file: YAML, its JSON schema, and fields that fit together.

All problems are reported together, in the order of lines. `resolve` takes the result; the dataset
is not read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labledger.errors import InvalidInput, Problem
from labledger.experiment import consistency_checks
from labledger.experiment.authored_fields import FieldPath, FieldProblem
from labledger.records import JsonObject, json_schemas

if TYPE_CHECKING:
    from labledger.experiment.yaml_lines import YamlDocument

MAX_BYTES = 4 << 20
"""The largest experiment file that is read, in bytes."""


@dataclass(frozen=True)
class AuthoredExperiment:
    """An experiment file as a person wrote it. Schema and consistency checks accept `data`."""

    path: Path
    text: str
    data: JsonObject
    document: YamlDocument

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self.path.parent

    def line(self, path: FieldPath) -> int:
        """Return the line (from 1) of a field such as ``("runtime", "agent", "command", 0)``."""
        return self.document.line(path)

    def problem(
        self, path: FieldPath, message: str, hint: str | None = None, line: int | None = None
    ) -> Problem:
        """Return a problem at a field of this file. `line` is given if the path is not enough."""
        field = json_schemas.dotted(path) or None
        return Problem(str(self.path), message, line or self.line(path), field, hint)


def load_experiment(path: Path) -> AuthoredExperiment:
    """Read and check the experiment file at `path`.

    Raises `InvalidInput` with all problems in the order of lines: of the YAML, against the schema
    `experiment_v1`, and of fields that contradict each other. The tasks are not read yet.
    """
    from labledger.experiment import yaml_lines

    text = _read_text(path)
    document = yaml_lines.parse(text, str(path))
    authored = AuthoredExperiment(path, text, document.data, document)
    problems = list(document.problems)
    invalid_paths = {problem.path for problem in problems}
    problems += [p for p in _schema_problems(document.data) if p.path not in invalid_paths]
    problems += consistency_checks.find_problems(
        authored.data, path.parent, [p.path for p in problems]
    )
    if problems:
        problems.sort(key=lambda p: p.line or document.line(p.path))
        located = [authored.problem(p.path, p.message, p.hint, p.line) for p in problems]
        raise InvalidInput(f"the experiment {path} is not valid", located)
    return authored


def _schema_problems(data: Any) -> Iterator[FieldProblem]:
    if data is None:
        yield FieldProblem(
            (), "is empty", "`labledger init DIR` writes an experiment to start from"
        )
        return
    for path, message in json_schemas.problems(data, "experiment_v1"):
        yield FieldProblem(path, message, _quoting_hint(data, path, message))


def _quoting_hint(data: Any, path: FieldPath, message: str) -> str | None:
    """Return a hint for a bare value that YAML did not read as text where text was expected."""
    value = data
    for step in path:
        if isinstance(value, dict) and step not in value:
            return None
        value = value[step]
    bare = value is None or isinstance(value, bool | int | float)
    expects_text = message.endswith("expected text")
    return "put it in quotes if text is meant" if bare and expects_text else None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
    except IsADirectoryError:
        hint = f"name the file in it, such as {path / 'experiment.yaml'}"
        raise _unreadable(path, "is a folder; a file is expected", hint=hint) from None
    except FileNotFoundError:
        hint = "check the path; `labledger init DIR` writes an experiment to start from"
        raise _unreadable(path, "there is no such file", hint=hint) from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        hint = "tasks belong in the dataset's JSONL file"
        raise _unreadable(path, f"is larger than {MAX_BYTES >> 20} MiB", hint=hint)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text (byte {error.start} of the file)"
        raise _unreadable(path, message, line, "save the file as UTF-8") from None


def _unreadable(
    path: Path, message: str, line: int | None = None, hint: str | None = None
) -> InvalidInput:
    return InvalidInput(
        f"cannot read the experiment {path}", [Problem(str(path), message, line, hint=hint)]
    )
