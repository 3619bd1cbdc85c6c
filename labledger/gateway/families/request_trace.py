"""The digests of a request by which a later request is recognized as its continuation.

A trace is small and holds no text. `KnownRequests` explains its use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labledger.records import JsonObject, canonical_json

_MAX_PIECES = 256
_MAX_TURNS = 5_000
_FLOAT_BYTES = 20
"""How many bytes longer than in the shortest JSON a fraction may be in canonical JSON."""
_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Members that control the provider's cache. Agents move them from turn to turn."""

Digest = bytes


@dataclass(frozen=True, slots=True)
class Turns:
    """The parts of a request by which the next one is recognized as its continuation."""

    turns: list[Any]
    """The messages, in order."""
    pieces: list[Any]
    """Tools and parts of the system prompt, which are compared one by one."""
    setting: JsonObject
    """Everything else that affects the tokens of turns and pieces."""
    by_model: Callable[[Any], bool]
    """Returns whether the model wrote a turn."""
    more_tokens: Callable[[Any], int]
    """Returns by how many tokens the count of a turn may exceed its bytes."""
    stored: Callable[[Any], str | None] = lambda _turn: None
    """Returns the name of a turn whose content the provider stored; None for other turns."""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """A turn of a request, and the conversation up to its end."""

    digest: Digest
    """The digest of all turns up to this one."""
    size: int
    """The fewest bytes that this turn can have."""
    size_so_far: int
    by_model: bool
    more_tokens: int
    """By how many tokens its count may exceed its bytes."""
    stored: str | None
    """Its name, if the provider stored its content; else None."""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The compared parts of a request."""

    setting: Digest
    pieces: Mapping[Digest, int]
    """The fewest bytes of each tool and each part of the system prompt."""
    turns: tuple[TracedTurn, ...]
    size: int
    """The bytes of the body."""
    overhead: int
    """How many tokens outside its body the request may have."""


def trace_of(turns: Turns, place: object, size: int, overhead: int) -> RequestTrace | None:
    """Return the trace of a request to `place`; None if it cannot be continued.

    Slow for a large request.
    """
    if not 0 < len(turns.turns) <= _MAX_TURNS:
        return None
    sizes = {}
    for piece in turns.pieces:
        text, least = _canonical(piece)
        sizes[_digest(b"", text)] = least
    setting, _ = _canonical([place, turns.setting])
    return RequestTrace(
        setting=_digest(b"", setting),
        pieces=sizes if len(sizes) <= _MAX_PIECES else {},
        turns=tuple(_chained(turns)),
        size=size,
        overhead=overhead,
    )


def _chained(turns: Turns) -> Iterator[TracedTurn]:
    digest, so_far = b"", 0
    for turn in turns.turns:
        text, size = _canonical(turn)
        digest, so_far = _digest(digest, text), so_far + size
        by_model, more = turns.by_model(turn), turns.more_tokens(turn)
        yield TracedTurn(digest, size, so_far, by_model, more, turns.stored(turn))


def _digest(before: Digest, text: bytes) -> Digest:
    return hashlib.sha256(before + text).digest()


def _canonical(value: Any) -> tuple[bytes, int]:
    """Return the compared form of a value, and the fewest bytes that its JSON can have."""
    plain, floats = _plain(value)
    text = canonical_json.dump_bytes(plain)
    return text, max(0, len(text) - _FLOAT_BYTES * floats)


def _plain(value: Any) -> tuple[Any, int]:
    """Return a value without marks, with its text in the shortest form.

    Also returns how many numbers in it have a fraction.
    """
    if isinstance(value, dict):
        members = {name: _plain(member) for name, member in value.items() if name not in _MARKS}
        return {name: plain for name, (plain, _) in members.items()}, _floats(members.values())
    if isinstance(value, list):
        listed = [_plain(item) for item in value]
        plain = [item for item, _ in listed]
        if len(plain) == 1 and _is_text(plain[0]):
            return plain[0]["text"], 0
        return plain, _floats(listed)
    return value, isinstance(value, float)


def _floats(members: Any) -> int:
    return sum(floats for _, floats in members)


def _is_text(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and block.keys() == {"type", "text"}
        and block["type"] == "text"
        and isinstance(block["text"], str)
    )
