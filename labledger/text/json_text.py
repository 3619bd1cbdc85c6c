"""JSON in pieces, for documents that are larger than memory should hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

_SCALARS = frozenset({str, int, float, bool, type(None)})


def json_pieces(value: Any, *, ascii_only: bool = True, margin: str = "\n") -> Iterator[str]:
    """Yield the text of a JSON value in pieces, indented like ``json.dumps(value, indent=2)``.

    An iterator in the value becomes a list, with one item at a time in memory. Items must not
    contain iterators. `margin` is the line break and indent of the value's line.
    """
    inner = f"{margin}  "
    encode = _encoder(inner, ascii_only)
    if isinstance(value, Iterator):
        before = "["
        for item in value:
            item_pieces = json_pieces(item, ascii_only=ascii_only, margin=inner)
            yield f"{before}{inner}{''.join(item_pieces)}"
            before = ","
        yield "[]" if before == "[" else f"{margin}]"
    elif not value or not isinstance(value, dict | list | tuple):
        yield encode(value)
    elif _is_flat(value):
        text = encode(value)
        yield f"{text[0]}{inner}{text[1:-1]}{margin}{text[-1]}"
    else:
        before, end = "{}" if isinstance(value, dict) else "[]"
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield f"{before}{inner}{encode(key)}: " if end == "}" else f"{before}{inner}"
            yield from json_pieces(member, ascii_only=ascii_only, margin=inner)
            before = ","
        yield f"{margin}{end}"


def _is_flat(value: Any) -> bool:
    """Return whether all members of an object or list are scalars."""
    members = value.values() if isinstance(value, dict) else value
    return _SCALARS.issuperset(map(type, members))


@cache
def _encoder(inner: str, ascii_only: bool) -> Callable[[Any], str]:
    """Return an encoder for flat values that puts each member on its own line."""
    separators = f",{inner}", ": "  # With `indent`, Python would not use its C encoder.
    return json.JSONEncoder(ensure_ascii=ascii_only, separators=separators).encode
