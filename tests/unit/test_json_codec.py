"""The codec between dataclasses and JSON: keys, their order, omissions and refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pytest

from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm, JsonRow, Section, TypeMismatch, decoder, to_json


class Colour(StrEnum):
    RED = "red"


class Pair(NamedTuple):
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Plain:
    path: Path
    colour: Colour


@dataclass(frozen=True, slots=True)
class Shown(JsonForm):
    count: int
    half: float | None = None
    hidden: int = field(default=0, compare=False)
    note: str = ""

    _JSON = ("note", "count", "double", "half")
    _KEYS: ClassVar = {"double": "twice"}
    _OPTIONAL = frozenset({"half", "note"})

    @property
    def double(self) -> int:
        return 2 * self.count


@dataclass(frozen=True, slots=True)
class Inner(Section):
    words: tuple[str, ...]
    colours: frozenset[Colour] = frozenset()


@dataclass(frozen=True, slots=True)
class Outer(Section):
    name: str
    inner: Inner | None = None
    by_name: Mapping[str, Inner] | None = None
    seconds: float = 1
    data: JsonObject | None = None
    cached: int = field(default=0, compare=False)

    _KEYS: ClassVar = {"name": "id"}
    _OPTIONAL = frozenset({"by_name", "data"})


def test_any_value() -> None:
    """Dataclasses, named tuples and mappings become objects, sets sorted lists, paths text."""
    value = {1: (Plain(Path("a/b"), Colour.RED), Pair(1, 2)), "set": frozenset({"b", "a"})}
    plain = {"path": "a/b", "colour": "red"}
    assert to_json(value) == {"1": [plain, {"first": 1, "second": 2}], "set": ["a", "b"]}
    assert type(to_json(Colour.RED)) is str


def test_chosen_members() -> None:
    """A class chooses which attributes are written, in which order, and which only if set."""
    assert list(Shown(3).as_json().items()) == [("count", 3), ("twice", 6)]
    full = {"note": "n", "count": 3, "twice": 6, "half": 0.5}
    assert list(to_json([Shown(3, 0.5, 1, "n")])[0].items()) == list(full.items())


def test_form_of_its_own() -> None:
    """A nested value with its own `as_json` is written by it."""

    @dataclass(frozen=True, slots=True)
    class Document(JsonForm):
        def as_json(self) -> JsonObject:
            return {"schema_version": "v1"}

    assert to_json({"a": Document()}) == {"a": {"schema_version": "v1"}}


def test_section_comes_back() -> None:
    """A stored section is read back equal, without members that are not stored."""
    inner = Inner(("a", "b"), frozenset({Colour.RED}))
    outer = Outer("x", inner, {"k": inner}, 60.0, {"any": [1]}, cached=5)
    stored = outer.as_json()
    section = {"words": ["a", "b"], "colours": ["red"]}
    assert stored == {
        "id": "x",
        "inner": section,
        "by_name": {"k": section},
        "seconds": 60.0,
        "data": {"any": [1]},
    }
    again = Outer.from_json(stored)
    assert again == outer
    assert again.cached == 0
    assert type(again.seconds) is int
    assert list(Outer("x").as_json()) == ["id", "inner", "seconds"]


@dataclass(frozen=True, slots=True)
class Row(JsonRow):
    word: str
    number: int
    is_set: bool = False
    not_stored: bytes = b""

    _JSON = ("word", "number", "is_set")


@dataclass(frozen=True, slots=True)
class Kinds(Section):
    """Every kind of field."""

    integer: int = 0
    number: float = 0
    flag: bool = False
    text: str = ""
    colour: Colour = Colour.RED
    choice: Literal["a", "b"] = "a"
    choice_or_none: Literal["a", "b"] | None = None
    pair: tuple[int, str] = (0, "")
    lists: tuple[tuple[int, ...], ...] = ()
    objects: list[JsonObject] | None = None
    by_name: Mapping[str, int] | None = None
    inner: Inner | None = None
    rows: tuple[Row, ...] = ()
    either: str | int | float | bool | None = None
    row_or_inner: Row | Inner | None = None
    anything: Any = None


@pytest.mark.parametrize(
    ("name", "stored", "value"),
    [
        ("integer", -(2**63), -(2**63)),
        ("integer", 60.0, 60),
        ("integer", 2**100, 2**100),
        ("number", 60.0, 60),
        ("number", 0.5, 0.5),
        ("number", 1e20, 1e20),
        ("flag", True, True),
        ("text", "5", "5"),
        ("colour", "red", Colour.RED),
        ("choice", "b", "b"),
        ("choice_or_none", "b", "b"),
        ("choice_or_none", None, None),
        ("pair", [1, "x"], (1, "x")),
        ("lists", [[1], []], ((1,), ())),
        ("objects", [{"a": [None]}], [{"a": [None]}]),
        ("objects", None, None),
        ("by_name", {"a": 1.0}, {"a": 1}),
        ("inner", {"words": ["a"]}, Inner(("a",))),
        ("rows", [["a", 1, True], ["b", 2]], (Row("a", 1, is_set=True), Row("b", 2))),
        ("either", 60.0, 60.0),
        ("either", 60, 60),
        ("either", True, True),
        ("either", "x", "x"),
        ("either", None, None),
        ("row_or_inner", ["a", 1], Row("a", 1)),
        ("row_or_inner", {"words": []}, Inner(())),
        ("anything", [1, {"a": "b"}], [1, {"a": "b"}]),
    ],
)
def test_kinds_of_values(name: str, stored: object, value: object) -> None:
    """Each kind of field reads its JSON form; only a union keeps 60.0 apart from 60."""
    read = getattr(Kinds.from_json({name: stored}), name)
    assert (read, type(read)) == (value, type(value))
    written = Kinds(**{name: value}).as_json()
    assert getattr(Kinds.from_json(written), name) == value


@pytest.mark.parametrize(
    ("name", "stored", "message"),
    [
        ("integer", "5", 'integer: expected an integer, found "5"'),
        ("integer", True, "integer: expected an integer, found true"),
        ("integer", None, "integer: expected an integer, found null"),
        ("integer", 5.5, "integer: expected an integer, found 5.5"),
        ("integer", 1e300, "integer: expected an integer, found 1e+300"),
        ("number", "0.5", 'number: expected a number, found "0.5"'),
        ("number", False, "number: expected a number, found false"),
        ("number", math.nan, "number: expected a finite number, found NaN"),
        ("flag", 1, "flag: expected true or false, found 1"),
        ("text", 5, "text: expected a string, found 5"),
        ("text", ["x"], 'text: expected a string, found ["x"]'),
        ("colour", "blue", 'colour: expected one of "red", found "blue"'),
        ("colour", 1, 'colour: expected one of "red", found 1'),
        ("choice", "c", 'choice: expected one of "a", "b", found "c"'),
        ("pair", [1], "pair: expected 2 values, found 1"),
        ("pair", [1, 2], "pair[1]: expected a string, found 2"),
        ("lists", [[1], [2, "3"]], 'lists[1][1]: expected an integer, found "3"'),
        ("lists", "text", 'lists: expected a list, found "text"'),
        ("objects", [{}, []], "objects[1]: expected an object, found []"),
        ("by_name", {"a": 1, "b": "1"}, 'by_name.b: expected an integer, found "1"'),
        ("by_name", [1], "by_name: expected an object or null, found [1]"),
        ("inner", {"words": ["a", 1]}, "inner.words[1]: expected a string, found 1"),
        ("inner", {"words": [], "word": 1}, "inner.word: Inner has no such key"),
        ("inner", {}, "inner.words: Inner needs this key"),
        ("rows", [["a", 1], ["b", "2"]], 'rows[1][1]: expected an integer, found "2"'),
        ("rows", [["a"]], "rows[0]: expected 3 values, found 1"),
        ("rows", [["a", 1, True, ""]], "rows[0]: expected 3 values, found 4"),
        ("either", math.inf, "either: expected a finite number, found Infinity"),
        ("row_or_inner", {"words": [1]}, "row_or_inner.words[0]: expected a string, found 1"),
        ("other", 1, "other: Kinds has no such key"),
    ],
)
def test_kinds_of_wrong_values(name: str, stored: object, message: str) -> None:
    """A value of another type is refused with its path, the expectation and what was found."""
    with pytest.raises(TypeMismatch, match=f"^{re.escape(message)}$"):
        Kinds.from_json({name: stored})


def test_document_of_another_kind() -> None:
    """A document that is no object is refused, and a missing key named."""
    with pytest.raises(TypeMismatch, match=r"^expected an object, found \[\]$"):
        decoder(Outer)([])
    with pytest.raises(TypeMismatch, match=r"^id: Outer needs this key$"):
        Outer.from_json({})


def test_rows_are_lists() -> None:
    """A row is written as the list of its members, without what is not stored."""
    assert to_json((Row("a", 1, not_stored=b"x"),)) == [["a", 1, False]]
