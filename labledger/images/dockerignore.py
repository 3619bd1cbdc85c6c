"""The patterns of a `.dockerignore` file, which leave files out of a build context.

A pattern matches a path of the context, and so everything beneath it; the last pattern that matches
decides, and one that begins with `!` brings back what an earlier one left out. `*` and `?` match
within a name, `**` any number of folders.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    brings_back: bool


@dataclass(frozen=True, slots=True)
class IgnorePatterns:
    """The patterns of one file, in its order."""

    patterns: tuple[_Pattern, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the patterns of a file's text. Raises `ValueError` for one that is malformed."""
        patterns = []
        for line in text.removeprefix("\ufeff").splitlines():
            pattern = "" if line.startswith("#") else line.strip()
            brings_back = pattern.startswith("!")
            if brings_back:
                pattern = pattern[1:].strip()
                if not pattern:
                    raise ValueError("found the pattern '!'; expected a name after it")
            if not pattern:
                continue
            clean = posixpath.normpath(pattern).lstrip("/")
            if clean and clean != ".":
                patterns.append(_Pattern(_regex(clean), brings_back))
        return cls(tuple(patterns))

    @property
    def has_exceptions(self) -> bool:
        """Whether a file in a folder that is left out may nevertheless be part of the context."""
        return any(pattern.brings_back for pattern in self.patterns)

    def leave_out(self, path: str) -> bool:
        """Return whether a path (`a/b`, relative to the context) is left out of the context."""
        steps = path.split("/")
        paths = ["/".join(steps[: count + 1]) for count in range(len(steps))]
        is_left_out = False
        for pattern in self.patterns:
            if pattern.brings_back is is_left_out and any(map(pattern.regex.fullmatch, paths)):
                is_left_out = not pattern.brings_back
        return is_left_out


def _regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern. Raises `ValueError` if it is malformed."""
    parts = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        position += 1
        if pattern.startswith("**", position - 1):
            position += 1
            if pattern.startswith("/", position):
                position += 1
            parts.append("(?:.*/)?" if position < len(pattern) else ".*")
        elif character == "*":
            parts.append("[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[":
            end = pattern.find("]", position + 1)
            if end < 0:
                raise ValueError(f"found the pattern {pattern!r}; its '[' has no ']'")
            parts.append(_character_class(pattern[position:end]))
            position = end + 1
        elif character == "\\" and position < len(pattern):
            parts.append(re.escape(pattern[position]))
            position += 1
        else:
            parts.append(re.escape(character))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise ValueError(f"found the pattern {pattern!r}: {error}") from None


def _character_class(content: str) -> str:
    negation = "^" if content.startswith("^") else ""
    escaped = re.sub(r"([\[&~|^])", r"\\\1", content[len(negation) :])
    return f"[{negation}{escaped}]"
