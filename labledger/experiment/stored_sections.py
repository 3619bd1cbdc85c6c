"""The codec of stored documents whose sections are frozen dataclasses.

A `Section` is read and written by the types of its fields: JSON values, other sections, tuples,
sets and mappings of them, and enumerations. An unknown key is an error: to ignore it could change
what a run means. `plan` declares the sections of a resolved experiment, `task_row` those of a task.
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
        given = {f.name: _decoded(f.kind, data[f.key]) for f in stored if f.key in data}
        return cls(**given)

    def as_json(self) -> JsonObject:
        document: JsonObject = {}
        for field in self._stored_fields():
            value = getattr(self, field.name)
            if value is not None or not field.is_optional:
                document[field.key] = _encoded(value) if field.is_typed else value
        return document

    @classmethod
    def _stored_fields(cls) -> tuple[_Field, ...]:
        return _fields(cast("Any", cls))  # mypy takes a dataclass for not hashable.


class _Field(NamedTuple):
    name: str
    key: str
    kind: Any
    """The declared type."""
    is_optional: bool
    is_typed: bool
    """False for a value that is JSON already."""


@cache
def _fields(section: Any) -> tuple[_Field, ...]:
    """Return the fields of a section that are part of the document."""
    kinds = get_type_hints(section)
    return tuple(
        _Field(
            field.name,
            section._KEYS.get(field.name, field.name),
            kinds[field.name],
            field.name in section._OPTIONAL,
            kinds[field.name] not in {Any, JsonObject, str, int, float, bool},
        )
        for field in fields(section)
        if field.compare
    )


def _decoded(kind: Any, value: Any) -> Any:
    """Return a JSON value as the type that a field declares.

    A whole number is an int, so that 60 and 60.0, which a person may write, are stored alike.
    """
    arguments = get_args(kind)
    if value is None:
        return None
    if isinstance(kind, UnionType):
        return _decoded(arguments[0], value)
    if get_origin(kind) in {tuple, frozenset}:
        return get_origin(kind)(_decoded(arguments[0], item) for item in value)
    if get_origin(kind) is Mapping:
        return {key: _decoded(arguments[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind.from_json(value)
    if kind is float:
        return plain_number(value)
    converts = kind is int or (isinstance(kind, type) and issubclass(kind, StrEnum))
    return kind(value) if converts else value


def plain_number(value: float) -> float:
    """Return a whole number as an int."""
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
