"""The codec of stored documents whose sections are frozen dataclasses.

A `Section` is read and written by the types of its fields: JSON values, other sections, tuples,
sets and mappings of them, and enumerations. An unknown key is an error: to ignore it could change
what a run means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Self, cast, get_args, get_origin, get_type_hints

from labledger.records import JsonObject


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the document: a dataclass whose fields are the keys, in the document's order.

    Fields with `compare=False` are not part of the document.
    """

    _KEYS: ClassVar[Mapping[str, str]] = {}
    """The keys that are not the names of their fields, by field."""
    _OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    """Fields whose keys the document has only if they are not None."""

    @classmethod
    def from_json(cls, data: JsonObject) -> Self:
        """Return a stored section. Raises `TypeError` for a missing or an unknown key."""
        stored = cls._stored_fields()
        if unknown := data.keys() - {field.key for field in stored}:
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        values = {f.name: _decoded(f.declared_type, data[f.key]) for f in stored if f.key in data}
        return cls(**values)

    def as_json(self) -> JsonObject:
        document: JsonObject = {}
        for field in self._stored_fields():
            value = getattr(self, field.name)
            if value is not None or not field.is_optional:
                document[field.key] = _encoded(value) if field.is_typed else value
        return document

    @classmethod
    def _stored_fields(cls) -> tuple[_Field, ...]:
        return _fields(cast("Any", cls))  # mypy does not know that a dataclass is hashable.


class _Field(NamedTuple):
    name: str
    key: str
    declared_type: Any
    is_optional: bool
    is_typed: bool
    """False for a value that is JSON already."""


@cache
def _fields(section: Any) -> tuple[_Field, ...]:
    """Return the fields of a section that are part of the document."""
    types = get_type_hints(section)
    return tuple(
        _Field(
            field.name,
            section._KEYS.get(field.name, field.name),
            types[field.name],
            field.name in section._OPTIONAL,
            types[field.name] not in {Any, JsonObject, str, int, float, bool},
        )
        for field in fields(section)
        if field.compare
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
    """Return an int if the number is an integer, so that 60 and 60.0 are stored alike."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _encoded(value: Any) -> Any:
    if isinstance(value, Section):
        return value.as_json()
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(map(_encoded, value))
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    return value.value if isinstance(value, StrEnum) else value
