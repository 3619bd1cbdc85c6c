"""The codec between dataclasses and JSON: keys, their order, omissions and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm, Section, to_json


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


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"id": "x", "other": 1}, "Outer has no other"),
        ({"id": "x", "inner": {"words": [], "word": 1}}, "Inner has no word"),
        ({}, "name"),
    ],
)
def test_refused(document: JsonObject, message: str) -> None:
    """An unknown or missing key of a stored section is an error, also in a nested one."""
    with pytest.raises(TypeError, match=message):
        Outer.from_json(document)
