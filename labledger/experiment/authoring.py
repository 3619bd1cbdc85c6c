"""The authored experiment: one YAML file, read whole, and everything wrong with it said at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labledger import schema
from labledger.errors import InvalidInput, Problem
from labledger.experiment import checks
from labledger.experiment.findings import FieldPath, Finding
from labledger.records import JsonObject

if TYPE_CHECKING:
    from labledger.experiment.yaml_lines import YamlDocument

MAX_BYTES = 4 << 20
"""How large an experiment file may be."""


@dataclass(frozen=True)
class Authored:
    """An experiment file as it was written; `data` is valid by schema and by sense."""

    path: Path
    text: str
    data: JsonObject
    document: YamlDocument

    @property
    def folder(self) -> Path:
        """Where the paths in the file start from."""
        return self.path.parent

    def line(self, path: FieldPath) -> int:
        """The line (from 1) of a field such as ``("runtime", "agent", "command", 0)``."""
        return self.document.line(path)

    def problem(self, path: FieldPath, message: str, hint: str | None = None) -> Problem:
        """A problem at a field of this file."""
        field = schema.dotted(path) or None
        return Problem(str(self.path), message, self.line(path), field, hint)


def load_experiment(path: Path) -> Authored:
    """Read and check the experiment file at `path`.

    Raises `InvalidInput` with every problem found, in the order of lines: in the YAML, against
    the schema `experiment_v1`, and in what the fields mean together. The tasks are not read yet.
    """
    from labledger.experiment import yaml_lines

    text = _read_text(path)
    document = yaml_lines.parse(text, str(path))
    authored = Authored(path, text, document.data, document)
    findings = list(document.findings)
    broken = {finding.path for finding in findings}
    findings += [found for found in _schema_findings(document.data) if found.path not in broken]
    findings += checks.find_all(authored.data, path.parent, [found.path for found in findings])
    if findings:
        found = sorted(findings, key=lambda f: f.line or document.line(f.path))
        problems = [_located(finding, authored) for finding in found]
        raise InvalidInput(f"the experiment {path} is not valid", problems)
    return authored


def _located(finding: Finding, authored: Authored) -> Problem:
    line = finding.line or authored.line(finding.path)
    field = schema.dotted(finding.path) or None
    return Problem(str(authored.path), finding.message, line, field, finding.hint)


def _schema_findings(data: Any) -> Iterator[Finding]:
    if data is None:
        yield Finding((), "is empty", "`labledger init DIR` writes an experiment to start from")
        return
    for path, message in schema.problems(data, "experiment_v1"):
        yield Finding(path, message, _quoting_hint(data, path, message))


def _quoting_hint(data: Any, path: FieldPath, message: str) -> str | None:
    """For a bare number or word that YAML did not read as text where text was expected."""
    value = data
    for step in path:
        if isinstance(value, dict) and step not in value:
            return None
        value = value[step]
    bare = value is None or isinstance(value, bool | int | float)
    wants_text = message.endswith("expected text")
    return "put it in quotes if text is meant" if bare and wants_text else None


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
