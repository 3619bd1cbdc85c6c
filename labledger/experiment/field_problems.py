"""Fields of authored files, problems at such fields, and safe file names.

The parser of YAML and the checks report a `FieldProblem` with the path of a field;
`experiment_file` adds file and line and turns it into an `errors.Problem`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FieldPath = tuple[str | int, ...]
"""The keys and indices that lead to a field from the top of a document."""


class FieldProblem(NamedTuple):
    """A problem at a field of a document."""

    path: FieldPath
    message: str
    hint: str | None = None
    line: int | None = None
    """Set if the path alone does not determine the line, such as for a duplicate key."""


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
