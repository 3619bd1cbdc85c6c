"""Canonical JSON, digests, and a strict parser for JSON that other programs wrote.

Canonical text is the same bytes for the same value, so that a digest of it identifies the value.
The parser bounds depth, size and numbers, because its input comes from containers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from json.encoder import encode_basestring
from typing import Any

from labledger.errors import MalformedJson

MAX_DEPTH = 64
"""How deep arrays and objects may nest in JSON that labledger accepts."""

_INT_LIMIT = 2**63
_ENCODER = json.JSONEncoder(
    # A value that holds itself exceeds the recursion limit; to look for one takes a quarter longer.
    check_circular=False,
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=False,
    allow_nan=False,
)


def dumps(value: Any) -> str:
    """Return the canonical text of a JSON value: sorted keys, no spaces, finite numbers."""
    # Calling the encoder takes longer than formatting what records have many of.
    if type(value) is str:
        return encode_basestring(value)
    if value is None:
        return "null"
    if type(value) is int:
        return int.__repr__(value)
    if type(value) is float and math.isfinite(value):
        return float.__repr__(value)
    return _ENCODER.encode(value)


def dump_bytes(value: Any) -> bytes:
    """Return the canonical text of a JSON value as UTF-8."""
    return dumps(value).encode("utf-8")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical text of a JSON value."""
    return sha256_hex(dump_bytes(value))


def loads(data: bytes, *, max_depth: int = MAX_DEPTH, max_values: int | None = None) -> Any:
    """Parse JSON that labledger did not write.

    Accepts UTF-8 without a byte order mark, no duplicate key, only finite numbers, integers of
    64 bits, at most `max_depth` levels and `max_values` values, which are counted before any is
    created. Raises `MalformedJson`, whose message continues a sentence that begins with the file.
    """
    if max_values is not None and has_more_values_than(max_values, data):
        raise MalformedJson(f"holds more than {max_values:,} values")
    if data.startswith(_MARK):
        raise MalformedJson("starts with a byte order mark; plain UTF-8 is expected")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedJson(f"is not UTF-8 (byte {error.start})") from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        # Which of two faults a parser reports first differs between versions of Python.
        if _nests_deeper(text, max_depth):
            raise MalformedJson(f"nests deeper than {max_depth} levels") from None
        raise MalformedJson(
            f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise MalformedJson(f"nests deeper than {max_depth} levels") from None
    _check_depth(value, max_depth)
    if "\\u" in text:
        _check_surrogates(value)
    return value


@dataclass(slots=True)
class Unstorable:
    """Values in JSON text that cannot be stored."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    """The first values, each such as ``/metrics/loss is NaN``."""

    def add(self, path: Sequence[str], what: str) -> None:
        """Note a value at a path of keys and indexes."""
        self.count += 1
        if len(self.first) < _NAMED:  # A path may be long, and there may be many paths.
            tokens = (token.replace("~", "~0").replace("/", "~1") for token in path)
            self.first.append(f"{''.join(f'/{token}' for token in tokens) or 'it'} is {what}")

    def extend(self, more: Unstorable, where: str) -> None:
        """Add the values of another text, whose place is `where`."""
        self.count += more.count
        self.first += [f"{where}{text}" for text in more.first[: _NAMED - len(self.first)]]


def loads_storable(
    data: bytes, *, max_depth: int = MAX_DEPTH, max_values: int | None = None
) -> tuple[Any, Unstorable]:
    """Parse JSON that labledger did not write, with null for values that cannot be stored.

    Such a value is NaN, an infinite number, an integer of more than 64 bits, or text with half of a
    surrogate pair or bytes that are not UTF-8. A member with such text as its name becomes null,
    with U+FFFD in its name. Ignores a byte order mark. Raises `MalformedJson`
    for everything else that `loads` refuses.
    """
    unstorable = Unstorable()
    try:
        return loads(data, max_depth=max_depth, max_values=max_values), unstorable
    except MalformedJson as error:
        if max_values is not None and has_more_values_than(max_values, data):
            raise
        text = data.removeprefix(_MARK).decode("utf-8", "surrogateescape")
        try:
            value = _LENIENT_DECODER.decode(text)
        except (json.JSONDecodeError, RecursionError):
            raise error from None
        _check_depth(value, max_depth)
    return _storable(value, [], unstorable), unstorable


@dataclass(frozen=True, slots=True)
class _NoNumber:
    """The place of a number that cannot be stored."""

    what: str


def _member(key: str, value: Any, path: list[str], unstorable: Unstorable) -> Any:
    path.append(key)
    stored = _storable(value, path, unstorable)
    path.pop()
    return stored


_NAMED = 5
_MARK = b"\xef\xbb\xbf"
_HALF = re.compile("[\ud800-\udfff]")
_BROKEN = "half of a surrogate pair or bytes that are not UTF-8"


def _storable(value: Any, path: list[str], unstorable: Unstorable) -> Any:
    """Return a value with null for what cannot be stored, and note where that is."""
    if isinstance(value, list):
        return [_member(str(i), item, path, unstorable) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return _storable_object(value, path, unstorable)
    if isinstance(value, _NoNumber):
        unstorable.add(path, value.what)
        return None
    if isinstance(value, str) and _HALF.search(value):
        unstorable.add(path, f"text with {_BROKEN}")
        return None
    return value


def _storable_object(
    value: dict[str, Any], path: list[str], unstorable: Unstorable
) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for key, member in value.items():
        if _HALF.search(key) is None:
            stored[key] = _member(key, member, path, unstorable)
        else:
            readable = _HALF.sub("\ufffd", key)
            unstorable.add([*path, readable], f"a member whose name has {_BROKEN}")
            if readable not in value:
                stored[readable] = None
    return stored


def has_more_values_than(limit: int, data: bytes) -> bool:
    """Return whether JSON text has more than `limit` values, in flat memory and without parsing it.

    Three bytes of JSON can become a Python object of a hundred bytes.
    """
    if 1 + data.count(b",") + data.count(b"[") + data.count(b"{") <= limit:
        return False
    return count_values(data, limit) > limit


def count_values(data: bytes, limit: int) -> int:
    """Return an upper bound of the values in JSON text. Counting stops at `limit` + 1."""
    return sum(1 for _ in islice(_UP_TO_NEXT_VALUE.finditer(data), limit + 1))


_UP_TO_NEXT_VALUE = re.compile(
    rb'(?!\Z)(?:[^",\[{]++|"(?:[^"\\]++|\\.?)*+(?:"|\Z))*+(?:[,\[{]|\Z)', re.DOTALL
)
"""Everything, strings included, up to a comma or an opening bracket, or up to the end.

It matches everywhere but at the end. Its quantifiers are possessive, so that no byte is read twice.
"""


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise MalformedJson(f"has the key {key[:80]!r} twice in one object")
            seen.add(key)
    return unique


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedJson(f"has the number {text[:40]}, which is not finite as a double")
    return value


def _bounded_int(text: str) -> int:
    value = int(text) if len(text) <= 20 else _INT_LIMIT
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise MalformedJson(f"has the integer {text[:40]}, which does not fit 64 bits")
    return value


def _refuse_constant(text: str) -> Any:
    raise MalformedJson(f"has {text}, which is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_object,
    parse_float=_finite_float,
    parse_int=_bounded_int,
    parse_constant=_refuse_constant,
)


def _storable_float(text: str) -> float | _NoNumber:
    value = float(text)
    return value if math.isfinite(value) else _NoNumber("a number that is infinite as a double")


def _storable_int(text: str) -> int | _NoNumber:
    value = int(text) if len(text) <= 20 else _INT_LIMIT
    fits = -_INT_LIMIT <= value < _INT_LIMIT
    return value if fits else _NoNumber("an integer that does not fit 64 bits")


_LENIENT_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_object,
    parse_float=_storable_float,
    parse_int=_storable_int,
    parse_constant=_NoNumber,
)


def _nests_deeper(text: str, max_depth: int) -> bool:
    """Return whether the brackets of a text, those in strings left out, nest too deep."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += match[0] in "[{"
        depth -= match[0] in "]}"
        if depth > max_depth:
            return True
    return False


_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    depth = 0
    while containers := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > max_depth:
            raise MalformedJson(f"nests deeper than {max_depth} levels")
        level = []
        for item in containers:
            level.extend(item.values() if isinstance(item, dict) else item)


def _check_surrogates(value: Any) -> None:
    try:
        dump_bytes(value)
    except UnicodeEncodeError:
        raise MalformedJson("has half of a surrogate pair in a string") from None
