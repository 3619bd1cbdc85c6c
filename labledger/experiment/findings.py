"""What is wrong with something authored, before it is known on which line it stands."""

from __future__ import annotations

from typing import NamedTuple

FieldPath = tuple[str | int, ...]
"""The keys and indices that lead to a field from the top of a document."""


class Finding(NamedTuple):
    """One thing wrong at a field of a document."""

    path: FieldPath
    message: str
    hint: str | None = None
    line: int | None = None
    """Set where the path alone does not tell the line, such as for a key written twice."""


class Refused(Exception):
    """A name, a file or a folder that labledger does not take, and what to do about it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def relative_name(text: str) -> str:
    """`text` as a plain relative path (``./a//b/`` becomes ``a/b``).

    Raises `Refused` for a path that is absolute, empty, climbs with ``..``, or is no valid text.
    """
    if text.startswith("/"):
        raise Refused(f"{text!r} is an absolute path", "name it relative to this file's folder")
    if "\0" in text or not is_utf8(text):
        raise Refused(f"the name {text!r} is not plain UTF-8 text")
    steps = [step for step in text.split("/") if step not in {"", "."}]
    if ".." in steps:
        raise Refused(f"{text!r} climbs out with '..'", "name something inside the folder")
    if not steps:
        raise Refused(f"{text!r} names no file", "name a file or a folder inside")
    return "/".join(steps)


def is_utf8(text: str) -> bool:
    """Whether `text` can be written as UTF-8: a name of other bytes on the disk cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
