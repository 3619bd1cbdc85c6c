"""The canonical form of a request: its content without the parts that differ in each run.

A replay finds the recorded answer to a request by the digest of this form. UUIDs, times and moments
are numbered in the order in which they first appear, so that equal ones stay equal. Times in a
listing of files, as `ls -l` prints it, are numbered one by one: two files may be made within one
minute in one run and not in the other. Lists that are sets are sorted. The order of lines stays: an
agent's answer may depend on it.
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
_CHANGING = re.compile(
    r"(?i)(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<time>(?<!\d)20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)"
    r"|(?P<moment>(?<![\d:,\[])1[6-9]\d{11}(?!\d))"
    r"|(?P<output>Chunk ID: [0-9a-f]+\\nWall time: [0-9.]+ seconds|Process Group PGID: \d+)"
)
"""Names and times that a program makes anew each time it runs, in the text of a request's JSON.

A line may begin with one, after an escaped line end. A moment is in milliseconds, as in names that
Gemini CLI makes. It is replaced only within a text: a JSON number stays. Codex and Gemini CLI add
the last ones to the output of a command.
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

Gemini CLI names its skills, to the model and as values of a tool's parameter, in the order in which
it happened to read their files. An agent writes the text, so a list may have no end. Each search
stops where another list begins, so many such lists take no longer than others.
"""
_LISTED = re.compile(
    r"(?P<file>[-dlcbps](?:[r-][w-][xsS-]){2}[r-][w-][xtT-][.+@]? +\d+ +[^ \"\\]+ +[^ \"\\]+ +"
    r"\d[\d.,]*[KMGTPE]?(?: +\d+)? +)"
    r"(?P<listed>[A-Z][a-z]{2} +\d{1,2} +(?:\d{1,2}:\d\d|\d{4})(?!\d)"
    r"|20\d\d-\d\d-\d\d \d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: [+-]\d{4})?)"
)
"""A file in a long listing up to its name: mode, links, owner, group, size (or the numbers of a
device), and when it was changed."""
_LISTED_BEFORE = re.compile(_LISTED.pattern.partition("(?P<listed>")[0] + r"<time \d+>")
"""The same as earlier versions stored it. They numbered only times with a year in digits."""
NUMBERED = re.compile(r"<(?:uuid|time|moment|output|listed) \d+>")
"""The label that replaces a name or a time in a canonical request."""


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """A request's content, without the parts that differ each time that an agent runs."""

    text: bytes
    """Canonical JSON."""
    digest: str
    replaced: Mapping[str, str]
    """The original name or time of each label in the text."""

    @classmethod
    def of(cls, request: JsonObject, replaced: Mapping[str, str]) -> Self:
        """Return the form of a request in which names and times are replaced."""
        text = dump_bytes(request)
        return cls(text, sha256_hex(text), replaced)

    @property
    def request(self) -> JsonObject:
        """The parsed text."""
        said: JsonObject = json.loads(self.text)
        return said


def canonical_request(provider: str, path: str, document: JsonObject) -> CanonicalRequest:
    """Return the canonical form of a request to a provider's path, whose body is `document`."""
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

    # The text is canonical, so that the order of members does not change the numbers.
    text = _LISTED.sub(number_file, _with_sorted_sets(dump_bytes(kept).decode()))
    text = _CHANGING.sub(number, text)
    request = {"provider": provider, "path": path, "body": json.loads(text)}
    return CanonicalRequest.of(request, replaced)


def has_listed_times(request: JsonObject) -> bool:
    """Return whether a canonical request has times of files, as earlier versions made it."""
    text = dump_bytes(request).decode()
    return _LISTED.search(text) is not None or _LISTED_BEFORE.search(text) is not None


def _with_sorted_sets(text: str) -> str:
    for listed, item in _UNORDERED:

        def in_order(found: re.Match[str], item: re.Pattern[str] = item) -> str:
            items = iter(sorted(item.findall(found[0])))
            return item.sub(lambda _: next(items), found[0])

        text = listed.sub(in_order, text)
    return text
