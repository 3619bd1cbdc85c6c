"""Read tables of Harbor's TOML files as Harbor's own reader does.

That reader converts some values, such as "60" to a number, and ignores unknown keys.
`accept_tables` does the same by a JSON Schema, and returns the ignored keys, so that the user can
be warned. Values that Harbor refuses are problems here, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from labledger.experiment.authored_fields import FieldPath
from labledger.records import JsonObject, json_schemas
from labledger.text.escaping import escape_line
from labledger.text.words import near_names

_ENDLESS = 1e12
"""The number that replaces infinity."""
_MAX_UNKNOWN = 20
"""The most unknown keys of a table that are named."""
_MAX_KEY = 60
"""The most characters of a key that are shown."""
_TRUE, _FALSE = {"1", "on", "t", "true", "y", "yes"}, {"0", "off", "f", "false", "n", "no"}


@dataclass(frozen=True, slots=True)
class AcceptedTables:
    """The tables of a file that Harbor's reader accepts."""

    values: JsonObject
    """The tables with converted values, which match the schema."""
    ignored: tuple[tuple[FieldPath, str], ...]
    """The paths of ignored keys, with reasons."""
    problems: tuple[tuple[FieldPath, str], ...]
    """The paths of values that Harbor refuses, with the expected values."""


def accept_tables(document: JsonObject, schema_name: str) -> AcceptedTables:
    """Return the parts of a document that Harbor accepts, by the named schema.

    Other values are left out and reported, so that the rest can be checked as well.
    """
    schema = json_schemas.load_schema(schema_name)
    reader = _Reader(schema.get("$defs", {}), [])
    values = reader.accepted(document, schema, ())
    problems = remaining = list(json_schemas.problems(values, schema_name))
    while remaining and values:
        paths = {_up_to_item(path) for path, _ in remaining}
        # Remove the last item of a list first, so that the others keep their index.
        for path in sorted(paths, key=lambda path: [str(s).zfill(9) for s in path], reverse=True):
            values = _without(values, path)
        remaining = list(json_schemas.problems(values, schema_name))
    return AcceptedTables(values, tuple(reader.ignored), tuple(problems))


def _without(values: Any, path: FieldPath) -> Any:
    """Return a document without the value at a path; an empty document without a path."""
    if not path:
        return {}
    step, *rest = path
    if isinstance(step, int):
        return [item for index, item in enumerate(values) if index != step]
    if rest:
        return values | {step: _without(values[step], tuple(rest))} if step in values else values
    return {key: value for key, value in values.items() if key != step}


def _up_to_item(path: FieldPath) -> FieldPath:
    """Return the path up to its first list item, because the whole item is left out."""
    index = next((n for n, step in enumerate(path) if isinstance(step, int)), len(path))
    return path[: index + 1]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Walks through a document along its schema."""

    definitions: JsonObject
    ignored: list[tuple[FieldPath, str]]

    def accepted(self, value: Any, schema: JsonObject, path: FieldPath) -> Any:
        schema = self._schema_for(value, schema)
        if isinstance(value, dict) and "properties" in schema:
            known = schema["properties"]
            self.ignored.extend(_unknown_keys(value, known, path))
            return {
                key: self.accepted(item, known[key], (*path, key))
                for key, item in value.items()
                if key in known
            }
        if isinstance(value, list) and "items" in schema:
            return [
                self.accepted(item, schema["items"], (*path, index))
                for index, item in enumerate(value)
            ]
        return _converted(value, schema.get("type"))

    def _schema_for(self, value: Any, schema: JsonObject) -> JsonObject:
        """Return a schema without references. For a table, return the choice for objects."""
        while "$ref" in schema:
            schema = self.definitions[schema["$ref"].rpartition("/")[2]]
        for choice in schema.get("anyOf", ()):
            if isinstance(value, dict) and choice.get("type") == "object":
                return self._schema_for(value, choice)
        return schema


def _unknown_keys(
    table: JsonObject, known: JsonObject, path: FieldPath
) -> Iterator[tuple[FieldPath, str]]:
    unknown = [key for key in table if key not in known]
    for key in unknown[:_MAX_UNKNOWN]:
        near = near_names(key, known)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield (*path, escape_line(key)[:_MAX_KEY]), f"unknown key, which Harbor ignores{hint}"
    if len(unknown) > _MAX_UNKNOWN:
        yield path, f"has {len(unknown):,} unknown keys, which Harbor ignores"


def _converted(value: Any, kind: str | list[str] | None) -> Any:
    """Return a value as Harbor's reader converts it to a type. Refused values stay unchanged."""
    if kind == "boolean":
        word = str(value).lower().removesuffix(".0")
        return word in _TRUE if word in _TRUE | _FALSE else value
    if kind == "number":
        return _as_number(value)
    if kind == "integer" or (isinstance(kind, list) and not isinstance(value, str)):
        number = _as_number(value)
        is_whole = isinstance(number, float) and number.is_integer() and number != _ENDLESS
        return int(number) if is_whole else number
    return value


def _as_number(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value) if not value.strip().lstrip("+-").isdigit() else int(value)
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(_ENDLESS, value)
    return value
