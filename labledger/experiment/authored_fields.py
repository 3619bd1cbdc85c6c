"""The parts of authored experiments: fields and their problems, values, safe names, `$NAME`s.

A check reports a `FieldProblem` with the path of a field, and `AuthoredExperiment` adds file and
line. `$NAME` and `${NAME}` refer to a binding, to a name of the container contract, or to the
environment; `$$` is a dollar sign. `phase_commands` substitutes bindings.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from labledger.errors import Problem
from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import normalize_number
from labledger.records.json_schemas import dotted

FieldPath = tuple[str | int, ...]
"""The keys and indices that lead to a field from the top of a document."""


class FieldProblem(NamedTuple):
    """A problem at a field of a document."""

    path: FieldPath
    message: str
    hint: str | None = None
    line: int | None = None
    """Set if the path alone does not determine the line, such as for a duplicate key."""


@dataclass(frozen=True)
class AuthoredExperiment:
    """An experiment file as a person wrote it. Schema and consistency checks accept `data`."""

    path: Path
    text: str
    data: JsonObject
    lines: Mapping[FieldPath, int]
    numbers: Mapping[FieldPath, str] = field(default_factory=dict)
    """The written form of numbers whose value has another text, such as 3.10."""

    @property
    def folder(self) -> Path:
        """The folder from which relative paths in the file start."""
        return self.path.parent

    def line(self, path: FieldPath) -> int:
        """Return the line (from 1) of a field, or of the nearest field around it in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def number_warnings(self) -> Iterator[Problem]:
        """Yield a warning for each number whose text changes for a command or a variable."""
        for path, written in self.numbers.items():
            if not {"bindings", "command", "env"}.isdisjoint(path[:-1]):
                message = (
                    f"{written} is a number, and the command gets {text(lookup(self.data, path))}"
                )
                yield self.problem(path, message, f"write '{written}' in quotes if text is meant")

    def problem(
        self, path: FieldPath, message: str, hint: str | None = None, line: int | None = None
    ) -> Problem:
        """Return a problem at a field of this file. Pass `line` if the path is ambiguous."""
        field = dotted(path) or None
        return Problem(str(self.path), message, line or self.line(path), field, hint)


class UnusablePath(Exception):
    """A name, a file or a folder that cannot be used: unsafe, missing or unreadable."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def lookup(data: Any, path: FieldPath) -> Any:
    """Return the value at `path`, or None if there is none."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def relative_name(text: str) -> str:
    """Return `text` as a plain relative path (``./a//b/`` becomes ``a/b``).

    Raises `UnusablePath` for a path that is absolute or empty, contains ``..`` or NUL, or cannot
    be written as UTF-8.
    """
    if text.startswith("/"):
        raise UnusablePath(
            f"{text!r} is an absolute path", "write it relative to this file's folder"
        )
    if "\0" in text or not is_utf8(text):
        raise UnusablePath(f"the name {text!r} is not plain UTF-8 text")
    steps = [step for step in text.split("/") if step not in {"", "."}]
    if ".." in steps:
        raise UnusablePath(f"{text!r} contains '..'", "name something inside the folder")
    if not steps:
        raise UnusablePath(f"{text!r} names no file", "name a file or a folder inside")
    return "/".join(steps)


def is_utf8(text: str) -> bool:
    """Return whether `text` can be written as UTF-8; a file name of other bytes cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


UNLIMITED = "unlimited"
"""The word for no limit of a resource. A key that is left out or empty means the default."""


def user_name(authored: Any) -> str | None:
    """Return an authored user, which may be a number, as text."""
    return None if authored is None else str(normalize_number(authored))


def texts(env: JsonObject) -> dict[str, str]:
    """Return authored environment variables as texts, sorted by name."""
    return {name: text(env[name]) for name in sorted(env)}


def text(value: Any) -> str:
    """Return an authored word or value as text."""
    return value if isinstance(value, str) else canonical_json.dumps(value)


_RESERVED = ("/agentlab", "/proc", "/sys", "/dev")
"""Folders of a container that no folder of an experiment may be in."""

_WRITTEN = ("/agentlab/workspace", "/agentlab/out", "/agentlab/state")


def unusable(path: str) -> str | None:
    """Return why a path in a container cannot be used; None if it can."""
    steps = PurePosixPath(path)
    if path == "/":
        return "found '/'; expected a folder in it"
    if "\n" in path:
        return f"found {path!r}; expected a path without line breaks"
    # `PurePosixPath` keeps two slashes at the beginning.
    if str(steps) != path.rstrip("/") or path.startswith("//") or ".." in steps.parts:
        return f"found {path!r}; expected a path without empty steps, . and .. such as /app/out"
    reserved = next((top for top in _RESERVED if path == top or is_inside(path, top)), None)
    return None if reserved is None else f"{path} is in {reserved}, which is not the experiment's"


def is_written(path: str) -> bool:
    """Return whether a path is in one of labledger's own folders to which agents write.

    Artifacts may be taken from and put into these folders, but no other files.
    """
    steps = PurePosixPath(path)
    is_plain = str(steps) == path.rstrip("/") and ".." not in steps.parts and "\n" not in path
    return is_plain and any(path.rstrip("/") == top or is_inside(path, top) for top in _WRITTEN)


def is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def overlap(one: str, other: str) -> bool:
    """Return whether two paths are the same, or one is inside the other."""
    return one.rstrip("/") == other.rstrip("/") or is_inside(one, other) or is_inside(other, one)


_REFERENCE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})"
)


class TextPart(NamedTuple):
    """A piece of authored text: literal text, or the name that a `$NAME` refers to."""

    text: str
    is_name: bool


def text_parts(text: str) -> list[TextPart]:
    """Split `text` into literals and names. A dollar sign before anything else is literal."""
    parts: list[TextPart] = []
    literal = ""
    end = 0
    for match in _REFERENCE.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        if match["escaped"]:
            literal += "$"
            continue
        if literal:
            parts.append(TextPart(literal, is_name=False))
            literal = ""
        parts.append(TextPart(match["name"] or match["braced"], is_name=True))
    literal += text[end:]
    if literal or not parts:
        parts.append(TextPart(literal, is_name=False))
    return parts


CONTRACT_NAMES = frozenset(
    {
        *("AGENTLAB_RUN_ID", "AGENTLAB_TRIAL_ID", "AGENTLAB_VARIANT_ID", "AGENTLAB_TASK_ID"),
        *("AGENTLAB_REPL_IDX", "AGENTLAB_TIMEOUT_MS", "AGENTLAB_TASK_IMAGE"),
        *("AGENTLAB_TASK_PATH", "AGENTLAB_BINDINGS_PATH", "AGENTLAB_POLICY_PATH"),
        *("AGENTLAB_RESULT_PATH", "AGENTLAB_TRAJECTORY_PATH", "AGENTLAB_AGENT_EXIT_STATUS"),
        *("AGENTLAB_BENCHMARK_PREDICTION_PATH", "AGENTLAB_BENCHMARK_SCORE_PATH", "WORKSPACE"),
    }
)
"""Every name of the container contract. Only the grader has the agent's exit status."""


def is_contract_name(name: str) -> bool:
    """Return True for a name that only labledger may set, in every container."""
    return name.startswith("AGENTLAB_") or name == "WORKSPACE"


def referenced_names(text: str) -> Iterator[str]:
    """Yield the names that `text` refers to, in its order."""
    return (part.text for part in text_parts(text) if part.is_name)


def substitute_names(text: str, known: Mapping[str, str]) -> str:
    """Return `text` with known names replaced by their values. The result is escaped again."""
    return "".join(
        escape_names(known[part.text])
        if part.is_name and part.text in known
        else f"${{{part.text}}}"
        if part.is_name
        else escape_names(part.text)
        for part in text_parts(text)
    )


def expand_names(text: str, known: Mapping[str, str]) -> str:
    """Return the final text, with every name replaced. Raises `KeyError` for an unknown name."""
    return "".join(known[part.text] if part.is_name else part.text for part in text_parts(text))


def escape_names(text: str) -> str:
    """Return authored text that stands for `text` itself."""
    return text.replace("$", "$$")


def phase_texts(
    command: Sequence[str] | None, env: Mapping[str, str] | None
) -> Iterator[tuple[FieldPath, str]]:
    """Yield each text of a phase that may contain a `$NAME`, with its path in the phase."""
    yield from ((("command", index), word) for index, word in enumerate(command or ()))
    yield from ((("env", key), value) for key, value in (env or {}).items())


def outside_names(
    texts: Iterable[tuple[FieldPath, str]], bound: Container[str] = ()
) -> Iterator[tuple[FieldPath, str]]:
    """Yield each `$NAME` that the environment must set, with the path of its text.

    These are all names except the names in `bound`, which bindings set, and names of the container
    contract.
    """
    for path, text in texts:
        for name in referenced_names(text):
            if name not in bound and not is_contract_name(name):
                yield path, name
