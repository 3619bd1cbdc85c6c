"""Commands that a person is told to type next, with the lab folder that this one was given."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_TYPED = re.compile(r"`(labledger (?!init\b)[^`]*)`")
_OPTION = "--lab-dir"


def to_type(command: str, lab_dir: Path | None) -> str:
    """Return a command as it must be typed to mean the same lab folder as this one."""
    return command if lab_dir is None else f"{command} {_OPTION} {shlex.quote(str(lab_dir))}"


def with_lab_dir(text: str, lab_dir: Path | None) -> str:
    """Return text for a person whose commands, in backticks, mean the same lab folder."""
    if lab_dir is None:
        return text
    return _TYPED.sub(
        lambda found: f"`{found[1] if _is_complete(found[1]) else to_type(found[1], lab_dir)}`",
        text,
    )


def _is_complete(command: str) -> bool:
    """Whether a command needs no lab folder, or names one."""
    return _OPTION in command or command.endswith(" --help")


def typed_lab_dir(words: Sequence[str] | None = None) -> Path | None:
    """Return the lab folder that the command line names, where the option itself is not at hand."""
    words = sys.argv[1:] if words is None else words
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == _OPTION and (equals or number + 1 < len(words)):
            return Path(value if equals else words[number + 1])
    return None
