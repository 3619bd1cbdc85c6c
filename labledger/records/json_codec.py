"""The codec between frozen dataclasses and JSON, by the types of their fields.

The keys of a form are the fields in order, unless `_JSON`, `_KEYS`, `_OPTIONAL` or `_ONLY_SET` of
the class change this. `to_json` writes any value, and `JsonForm` adds `as_json`. `decoder` and
`Section` read, check types, and refuse unknown keys, because ignoring one could change a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from labledger.records import JsonObject
from labledger.records.json_schemas import dotted, short_json

_INT_LIMIT = 2**63
_PLAIN_TYPES = {Any, JsonObject, str, int, float, bool, NoneType}
"""A value of such a field is JSON already."""


def to_json(value: Any) -> Any:
    """Return a value as JSON, with everything in it. A set becomes a sorted list."""
    return _encoder(value.__class__)(value)


class JsonForm:
    """A class with a JSON form, which may be nested in other ones."""

    __slots__ = ()

    _JSON: ClassVar[tuple[str, ...] | None] = None
    """The attributes in the form, in order; None for all fields."""
    _KEYS: ClassVar[Mapping[str, str]] = {}
    """The keys that are not the names of their attributes, by attribute."""
    _OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    """Fields that the form leaves out if they have the default value."""
    _ONLY_SET: ClassVar[bool] = False
    """Whether the form leaves out all fields that have their default values."""
    _OWN_READER: ClassVar[bool] = False
    """Whether `from_json` of the class reads the form, because fields alone do not define it."""

    def as_json(self) -> JsonObject:
        """Return the JSON form."""
        return members(self)


def members(value: Any) -> JsonObject:
    """Return the members of an object's JSON form."""
    document: JsonObject = {}
    for name, key, _, encode, omitted in members_of(value.__class__):
        member = getattr(value, name)
        if omitted is ALWAYS or member != omitted:
            document[key] = member if encode is None else encode(member)
    return document


class JsonRow:
    """A dataclass whose JSON form is the list of its members' values.

    A list may lack the last ones if their fields have defaults.
    """

    __slots__ = ()

    _JSON: ClassVar[tuple[str, ...] | None] = None
    """The fields in the form, in order; None for all fields."""


@cache
def _encoder(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, JsonRow):
        return _row_encoder(kind)
    if issubclass(kind, StrEnum):
        return lambda value: value.value
    if issubclass(kind, Path):
        return str
    if hasattr(kind, "as_json"):
        encoder: Callable[[Any], Any] = kind.as_json
        return encoder
    if is_dataclass(kind):
        return members
    if hasattr(kind, "_asdict"):  # a named tuple
        return lambda value: to_json(value._asdict())
    if issubclass(kind, Mapping):
        return lambda value: {str(key): to_json(item) for key, item in value.items()}
    if issubclass(kind, frozenset):
        return lambda value: sorted(map(to_json, value))
    if issubclass(kind, tuple | list):
        return lambda value: list(map(to_json, value))
    return lambda value: value


def _row_encoder(kind: type) -> Callable[[Any], Any]:
    members_in_order = members_of(cast("Any", kind))
    values = attrgetter(*(member.name for member in members_in_order))
    if all(member.encode is None for member in members_in_order):
        return lambda value: list(values(value))
    return lambda value: list(map(to_json, values(value)))


@dataclass(frozen=True, slots=True)
class Section(JsonForm):
    """A section of a stored document. Fields with `compare=False` are not part of it."""

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        """Return a stored section.

        Raises `TypeMismatch` for a missing or an unknown key, and for a value of another type.
        """
        section: Self = decoder(cls)(data)
        return section

    def fields_set(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


ALWAYS = object()
"""Equals the value of no field, so the key is always written."""


class Member(NamedTuple):
    """A member of the JSON form of a class."""

    name: str
    """The name of the attribute."""
    key: str
    declared_type: Any
    encode: Callable[[Any], Any] | None
    """Return its value as JSON; None if it is JSON already."""
    omitted: Any
    """The value for which the key is left out, or `ALWAYS`."""


@cache
def members_of(kind: Any) -> tuple[Member, ...]:
    """Return the members of the JSON form of a class, in their order."""
    keys, optional = getattr(kind, "_KEYS", {}), getattr(kind, "_OPTIONAL", ())
    only_set = getattr(kind, "_ONLY_SET", False)
    types, defaults = get_type_hints(kind), {field.name: field.default for field in fields(kind)}
    names = getattr(kind, "_JSON", None) or [field.name for field in fields(kind) if field.compare]
    return tuple(
        Member(
            name,
            keys.get(name, name),
            types.get(name),
            _member_encoder(types.get(name)),
            defaults[name] if only_set or name in optional else ALWAYS,
        )
        for name in names
    )


def _member_encoder(declared: Any) -> Callable[[Any], Any] | None:
    arguments = get_args(declared)
    if declared in _PLAIN_TYPES:
        return None
    if isinstance(declared, UnionType) and {*arguments} <= _PLAIN_TYPES:
        return None
    # Records may be large, so their content is not copied.
    is_plain_tuple = get_origin(declared) is tuple and {*arguments[:-1]} <= _PLAIN_TYPES
    return list if is_plain_tuple and arguments[-1] is Ellipsis else to_json


class TypeMismatch(ValueError):
    """A value is not of the type that its reader expects. The message names the value's path."""

    def __init__(self, problem: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.problem}" if self.path else self.problem

    def inside(self, step: str | int) -> Self:
        """Return the error for the value that holds this one at a key or an index."""
        return type(self)(self.problem, (step, *self.path))


class _Reader(NamedTuple):
    """How a value of a declared type is read."""

    expected: str
    """The accepted values, for messages."""
    conversions: Mapping[str, Callable[[Any], Any]]
    """The conversion of each accepted kind of JSON value; see `_json_kind`."""

    def function(self) -> Callable[[Any], Any]:
        """Return the function that reads a value. It raises `TypeMismatch`."""
        # By class, because this is done for every value.
        by_class = {cls: self.conversions.get(kind) for cls, kind in _KINDS.items()}

        def read(value: Any) -> Any:
            convert = by_class.get(value.__class__)
            if convert is None:
                convert = self.conversions.get(_json_kind(value.__class__))
                if convert is None:
                    raise _mismatch(self.expected, value)
            return convert(value)

        return read


def decoder(declared: Any) -> Callable[[Any], Any]:
    """Return the function that reads JSON as a declared type, such as a dataclass.

    It raises `TypeMismatch`. An integer may be written as 60 or 60.0, and becomes an int.
    """
    return _decoder(declared)  # Not cached itself: mypy calls a class unhashable.


@cache
def _decoder(declared: Any) -> Callable[[Any], Any]:
    return _unchanged if declared is Any else _reader(declared).function()


_KINDS: Mapping[type, str] = {
    # Before int, because a bool is one.
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    NoneType: "null",
    list: "array",
    tuple: "array",
    dict: "object",
    Mapping: "object",
}


@cache
def _json_kind(kind: type) -> str:
    """Return the kind of JSON value that values of a class are, or the name of the class."""
    return next((name for base, name in _KINDS.items() if issubclass(kind, base)), kind.__name__)


def _mismatch(expected: str, value: Any) -> TypeMismatch:
    return TypeMismatch(f"expected {expected}, found {short_json(value)}")


def _reader(declared: Any) -> _Reader:
    arguments, origin = get_args(declared), get_origin(declared)
    if declared in _SCALARS:
        return _SCALARS[declared]
    if isinstance(declared, UnionType) or origin is Union:
        return _union_reader(arguments)
    if origin is Literal:
        return _choice_reader({word: word for word in arguments})
    if origin is tuple and arguments[-1] is not Ellipsis:
        row = partial(_row, [*map(decoder, arguments)], len(arguments))
        return _Reader("a list", {"array": lambda values: tuple(row(values))})
    if origin in {tuple, frozenset, list}:
        return _Reader("a list", {"array": partial(_collection, origin, decoder(arguments[0]))})
    if declared is JsonObject:
        return _Reader("an object", {"object": _unchanged})
    if origin in {Mapping, dict}:
        return _Reader("an object", {"object": partial(_mapping, decoder(arguments[1]))})
    if issubclass(declared, StrEnum):
        return _choice_reader({word.value: word for word in declared})
    assert isinstance(declared, type), declared
    if issubclass(declared, JsonRow):
        return _row_reader(declared)
    if getattr(declared, "_OWN_READER", False):
        return _Reader("an object", {"object": cast("Any", declared).from_json})
    return _Reader("an object", {"object": _object_conversion(declared)})


def _union_reader(arguments: tuple[Any, ...]) -> _Reader:
    """Read a union by the kind of the value."""
    readers = [_reader(argument) for argument in arguments]
    conversions = {kind: fn for reader in readers for kind, fn in reader.conversions.items()}
    if {int, float} <= {*arguments}:
        # Where both may stand, 60 and 60.0 stay different.
        conversions["number"] = _finite
    return _Reader(" or ".join(reader.expected for reader in readers), conversions)


def _choice_reader(values: Mapping[str, Any]) -> _Reader:
    expected = f"one of {', '.join(map(short_json, values))}"

    def choose(word: str) -> Any:
        if word not in values:
            raise _mismatch(expected, word)
        return values[word]

    return _Reader(expected, {"string": choose})


def _row_reader(kind: type) -> _Reader:
    stored = members_of(cast("Any", kind))
    decoders = [decoder(member.declared_type) for member in stored]
    required = sum(member.name in _required(kind) for member in stored)
    return _Reader("a list", {"array": lambda values: kind(*_row(decoders, required, values))})


def _row(
    decoders: Sequence[Callable[[Any], Any]], required: int, values: Sequence[Any]
) -> list[Any]:
    """Return the values of a list with a decoder for each place."""
    if not required <= len(values) <= len(decoders):
        raise TypeMismatch(f"expected {len(decoders)} values, found {len(values)}")
    return read_each(range(len(values)), decoders, values)


def _collection(kind: type, decode: Callable[[Any], Any], values: Sequence[Any]) -> Any:
    return kind(read_each(range(len(values)), repeat(decode), values))


def _mapping(decode: Callable[[Any], Any], data: Mapping[str, Any]) -> dict[str, Any]:
    values = read_each([*data], repeat(decode), data.values())
    return dict(zip(data, values, strict=True))


def _object_conversion(kind: type) -> Callable[[Any], Any]:
    """Return the function that reads an object as a dataclass."""
    members_by_key = {member.key: member for member in members_of(cast("Any", kind))}
    decoders = {key: decoder(member.declared_type) for key, member in members_by_key.items()}
    required = [key for key, member in members_by_key.items() if member.name in _required(kind)]

    def convert(data: Mapping[str, Any]) -> Any:
        if unknown := data.keys() - decoders.keys():
            raise TypeMismatch(f"{kind.__name__} has no such key", (min(unknown),))
        for key in required:
            if key not in data:
                raise TypeMismatch(f"{kind.__name__} needs this key", (key,))
        values = read_each([*data], (decoders[key] for key in data), data.values())
        return kind(**{members_by_key[key].name: v for key, v in zip(data, values, strict=True)})

    return convert


def _required(kind: Any) -> set[str]:
    """Return the fields of a dataclass that have no default."""
    return {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}


def read_each(
    steps: Sequence[str | int], decoders: Iterable[Callable[[Any], Any]], values: Iterable[Any]
) -> list[Any]:
    """Return each value as its decoder reads it. A `TypeMismatch` gets the step of its value."""
    read: list[Any] = []
    try:
        for decode, value in zip(decoders, values, strict=False):
            read.append(decode(value))
    except TypeMismatch as error:
        raise error.inside(steps[len(read)]) from None
    return read


def _unchanged(value: Any) -> Any:
    return value


def _integer(value: float) -> int:
    """Return a whole number. Parsers of stored JSON refuse integers of more than 64 bits.

    Caps between coordinator and gateway may be larger, but are never written as 1e20.
    """
    if isinstance(value, int):
        return value
    if -_INT_LIMIT <= value < _INT_LIMIT and value.is_integer():
        return int(value)
    raise _mismatch("an integer", value)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise _mismatch("a finite number", value)
    return value


_SCALARS: Mapping[Any, _Reader] = {
    str: _Reader("a string", {"string": _unchanged}),
    bool: _Reader("true or false", {"boolean": _unchanged}),
    int: _Reader("an integer", {"integer": _integer, "number": _integer}),
    float: _Reader(
        "a number", {"integer": _integer, "number": lambda value: normalize_number(_finite(value))}
    ),
    NoneType: _Reader("null", {"null": _unchanged}),
}


def normalize_number(value: float) -> float:
    """Return an int if the number is an integer, so that 60 and 60.0 are stored alike.

    An integer of more than 64 bits stays a float, because JSON with such an integer is not read.
    """
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _INT_LIMIT
    return int(value) if is_whole else value
