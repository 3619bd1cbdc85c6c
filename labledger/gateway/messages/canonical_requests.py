"""The canonical form of a request: its content without the parts that differ in each run.

A replay finds the recorded answer by the digest of this form. UUIDs and times are numbered in order
of first appearance. Lists that are sets are sorted. The order of lines stays, because an agent's
answer may depend on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from labledger.records import JsonObject
from labledger.records.canonical_json import dump_bytes, sha256_hex

_OF_ONE_RUN = frozenset(
    {"metadata", "client_metadata", "prompt_cache_key", "safety_identifier", "user"}
)
"""Members of a request that name the agent's session and user. They change no answer."""
_CLOCK_TIME = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
_CHANGING = re.compile(
    "|".join(
        (
            r"(?i)(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})",
            rf"(?P<time>(?<!\d)20\d\d-\d\d-\d\d(?:[T ]{_CLOCK_TIME})?)",
            r"(?P<moment>(?<![\d:,\[])1[6-9]\d{11}(?!\d))",
            r"(?P<output>Chunk ID: [0-9a-f]+\\nWall time: [0-9.]+ seconds|Process Group PGID: \d+)",
        )
    )
)
"""Names and times that a program makes anew each time it runs, in the text of a request's JSON.

A line may begin with one, after an escaped line end. A moment is in milliseconds, as in names that
Gemini CLI makes. It is replaced only within text, and not if it is a JSON number. Codex and Gemini
CLI add the `output` forms to the output of a command.
"""
_UNORDERED = tuple(
    (re.compile(listed), re.compile(item))
    for listed, item in (
        (
            r"<available_skills>(?:(?!<available_skills>).)*?</available_skills>",
            r"<skill>(?:(?!<skill>).)*?</skill>",
        ),
        (r"\(Available: (?:'[^']*'(?:, )?)+\)", r"'[^']*'"),
        (r'"enum":\[(?:"(?:[^"\\]|\\.)*"|[^"\[\]{}])*\]', r'"(?:[^"\\]|\\.)*"(?=[,\]])'),
    )
)
"""Lists that are sets, in the text of a request's JSON, and their items.

Gemini CLI lists its skills, in text and as values of a tool's parameter, in the order in which it
happened to read their files. An agent writes the text, so a list may have no end. Each search stops
at the beginning of the next list, so that many unfinished lists do not slow it down.
"""
_LISTED_FILE = (
    r"(?P<file>[-dlcbps](?:[r-][w-][xsS-]){2}[r-][w-][xtT-][.+@]? +\d+ +[^ \"\\]+ +[^ \"\\]+ +"
    r"\d[\d.,]*[KMGTPE]?(?: +\d+)? +)"
)
_LISTED_TIME = (
    r"(?P<listed>[A-Z][a-z]{2} +\d{1,2} +(?:\d{1,2}:\d\d|\d{4})(?!\d)"
    r"|20\d\d-\d\d-\d\d \d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: [+-]\d{4})?)"
)
_LISTED = re.compile(_LISTED_FILE + _LISTED_TIME)
"""A file in a long listing, up to its name.

These are its mode, links, owner, group, size (or device numbers), and time of change. The times are
numbered one by one, because two files may have the same minute in one run only.
"""
_LISTED_BEFORE = re.compile(_LISTED_FILE + r"<time \d+>")
"""The form that earlier versions stored. They numbered only times with a year in digits."""
NUMBERED = re.compile(r"<(?:uuid|time|moment|output|listed) \d+>")
"""The label that replaces a name or a time in a canonical request."""


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """The content of a request, without the parts that differ in each run."""

    text: bytes
    """Canonical JSON."""
    digest: str
    replaced: Mapping[str, str]
    """The original name or time of each label in the text."""

    @classmethod
    def of(cls, request: JsonObject, replaced: Mapping[str, str]) -> Self:
        """Return the canonical form for a request whose names and times are already replaced."""
        text = dump_bytes(request)
        return cls(text, sha256_hex(text), replaced)

    @property
    def request(self) -> JsonObject:
        """The parsed text."""
        document: JsonObject = json.loads(self.text)
        return document


def canonical_request(provider: str, path: str, document: JsonObject) -> CanonicalRequest:
    """Return the canonical form of a request with the body `document`."""
    kept = {key: value for key, value in document.items() if key not in _OF_ONE_RUN}
    numbers: dict[str, str] = {}
    replaced: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        label = f"<{match.lastgroup} {len(numbers) + 1}>"
        label = numbers.setdefault(match[0].lower(), label)
        replaced.setdefault(label, match[0])
        return label

    def number_file(match: re.Match[str]) -> str:
        label = f"<listed {len(replaced) + 1}>"  # Nothing else is numbered yet.
        replaced[label] = match["listed"]
        return f"{match['file']}{label}"

    # Number the canonical text, so that the order of members does not matter.
    text = _LISTED.sub(number_file, _with_sorted_sets(dump_bytes(kept).decode()))
    text = _CHANGING.sub(number, text)
    request = {"provider": provider, "path": path, "body": json.loads(text)}
    return CanonicalRequest.of(request, replaced)


def has_listed_times(request: JsonObject) -> bool:
    """Return whether a canonical request lists times of files in the form of earlier versions."""
    text = dump_bytes(request).decode()
    return _LISTED.search(text) is not None or _LISTED_BEFORE.search(text) is not None


def _with_sorted_sets(text: str) -> str:
    for listed, item in _UNORDERED:

        def in_order(match: re.Match[str], item: re.Pattern[str] = item) -> str:
            items = iter(sorted(item.findall(match[0])))
            return item.sub(lambda _: next(items), match[0])

        text = listed.sub(in_order, text)
    return text
