"""JSON that is written in pieces equals the text of `json.dumps`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from labledger.text.json_text import json_pieces

VALUES = (
    *(None, True, 1, -2.5, "", "a\nb", "ä\u2028", [], {}, [[]], [{}], {"a": []}, {"a": {}}),
    *([1, "two", None], {"a": 1, "b": "x\ny"}, [[1], [], [2, [3]]], {"a": {"b": {"c": [1, {}]}}}),
    *({"a": (1, 2), "b": ({"c": 1}, {"c": []})}, {'"quoted"\n': {"b": "[1, 2], {}"}}),
)


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_same_text(value: object, ascii_only: bool) -> None:
    """The text equals `json.dumps` with an indent of two."""
    expected = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    assert "".join(json_pieces(value, ascii_only=ascii_only)) == expected


def test_iterators_are_lists() -> None:
    """An iterator anywhere is written as a list, and read one item at a time."""
    taken: list[int] = []

    def rows(count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            taken.append(number)
            yield {"number": number, "words": ["a"]}

    value = {"name": "x", "none": rows(0), "deep": [{"rows": rows(2)}], "rows": rows(3)}
    lists = {"name": "x", "none": [], "deep": [{"rows": [*rows(2)]}], "rows": [*rows(3)]}
    expected = json.dumps(lists, indent=2)
    taken.clear()
    assert "".join(json_pieces(value)) == expected
    taken.clear()
    pieces = json_pieces({"rows": rows(1_000_000)})
    while not taken:
        next(pieces)
    assert taken == [0]
