"""The codec between frozen dataclasses and JSON, by the types of their fields.

The keys of a JSON form are the fields in order, unless `_JSON`, `_KEYS`, `_OPTIONAL` or `_ONLY_SET`
of the class change this. `to_json` writes any value, `JsonForm` adds `as_json`, and `Section` also
reads, and refuses unknown keys, because ignoring one could change a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Self, cast, get_args, get_origin, get_type_hints

from labledger.records import JsonObject

_INT_LIMIT = 2.0**63
_PLAIN_TYPES = {Any, JsonObject, str, int, float, bool}
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

    def as_json(self) -> JsonObject:
        """Return the JSON form."""
        return members(self)


def members(value: Any) -> JsonObject:
    """Return the members of an object's JSON form."""
    document: JsonObject = {}
    for name, key, _, is_plain, omitted in members_of(value.__class__):
        member = getattr(value, name)
        if omitted is ALWAYS or member != omitted:
            document[key] = member if is_plain else to_json(member)
    return document


@cache
def _encoder(kind: type) -> Callable[[Any], Any]:
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


@dataclass(frozen=True, slots=True)
class Section(JsonForm):
    """A section of a stored document. Fields with `compare=False` are not part of it."""

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        """Return a stored section. Raises `TypeError` for a missing or an unknown key."""
        stored = members_of(cast("Any", cls))  # mypy does not know that a class is hashable.
        if unknown := data.keys() - {member.key for member in stored}:
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        values = {m.name: _decoded(m.declared_type, data[m.key]) for m in stored if m.key in data}
        return cls(**values)

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
    is_plain: bool
    """Whether its value is JSON already."""
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
            types.get(name) in _PLAIN_TYPES,
            defaults[name] if only_set or name in optional else ALWAYS,
        )
        for name in names
    )


def _decoded(declared_type: Any, value: Any) -> Any:
    """Return a JSON value as a value of the type that a field declares.

    Integers become ints, so that 60 and 60.0, which a person may write, are stored alike.
    """
    arguments = get_args(declared_type)
    if value is None:
        return None
    if isinstance(declared_type, UnionType):
        return _decoded(arguments[0], value)
    if get_origin(declared_type) in {tuple, frozenset}:
        return get_origin(declared_type)(_decoded(arguments[0], item) for item in value)
    if get_origin(declared_type) is Mapping:
        return {key: _decoded(arguments[1], item) for key, item in value.items()}
    if isinstance(declared_type, type) and issubclass(declared_type, Section):
        return declared_type.from_json(value)
    if declared_type is float:
        return normalize_number(value)
    is_enum = isinstance(declared_type, type) and issubclass(declared_type, StrEnum)
    return declared_type(value) if is_enum or declared_type is int else value


def normalize_number(value: float) -> float:
    """Return an int if the number is an integer, so that 60 and 60.0 are stored alike.

    An integer of more than 64 bits stays a float, because JSON with such an integer is not read.
    """
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _INT_LIMIT
    return int(value) if is_whole else value
