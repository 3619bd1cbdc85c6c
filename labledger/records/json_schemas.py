"""The JSON Schemas of records, by name, and messages about data that do not fit them.

A message names the field, the value and the expectation, and suggests a similar key.
`scripts/schemas.py` generates schemas from the types of fields: in ``Annotated[float, ("minimum",
0)]`` each pair is a keyword of JSON Schema and its value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from labledger import resources
from labledger.errors import InvalidInput, Problem, SchemaInvalid
from labledger.records import JsonObject
from labledger.text.words import near_names

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError


Count = Annotated[int, ("minimum", 0)]
PositiveInt = Annotated[int, ("minimum", 1)]
NonNegative = Annotated[float, ("minimum", 0)]
Share = Annotated[float, ("minimum", 0), ("maximum", 1)]
Text = Annotated[str, ("minLength", 1)]

LATER = "later"
"""Marks a key that documents of earlier versions do not have, so that it is not required."""


def one_of(*words: str) -> tuple[str, tuple[str, ...]]:
    """Return the keyword for a text that is one of `words`."""
    return "enum", tuple(map(str, words))


def one_of_each(*keys: str) -> tuple[str, tuple[str, ...]]:
    """Return the marker of a mapping that has these keys, and no others."""
    return "keys", keys


MAX_PROBLEMS = 1000
"""The largest number of reported problems of a record. A list may have a million wrong items, and
each problem takes memory.
"""


@cache
def load_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema called `name`, such as ``benchmark_score_record_v1``."""
    text = (resources.schemas() / f"{name}.jsonschema").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def _validator(name: str) -> Draft202012Validator:
    validator: Draft202012Validator = _validator_type()(load_schema(name))
    return validator


@cache
def _validator_type() -> Any:
    from jsonschema import validators

    # Typed as Any, because the library's annotations do not cover `extend`.
    untyped: Any = validators
    draft = untyped.Draft202012Validator
    number = draft.TYPE_CHECKER.redefine("number", _is_number)
    return untyped.extend(draft, {"pattern": _pattern_problems}, type_checker=number)


def _is_number(_checker: Any, value: Any) -> bool:
    """Return whether a value is a number that JSON can represent."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (isinstance(value, int) or math.isfinite(value))


def _pattern_problems(
    validator: Draft202012Validator, pattern: str, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    """Check `pattern` as JSON Schema defines it: ``$`` matches at the end only.

    Python's also matches before a last line break.
    """
    from jsonschema.exceptions import ValidationError

    if validator.is_type(instance, "string") and not _compiled(pattern).search(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def require_valid(record: Any, name: str) -> None:
    """Raise `SchemaInvalid` with the first problem of `record` against the schema `name`."""
    validator = _validator(name)
    if validator.is_valid(record):
        return
    path, message = next(problems(record, name))
    raise SchemaInvalid(f"{dotted(path) or 'record'}: {message}", pointer=pointer(path))


def problems(record: Any, name: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the problems of `record` against the schema `name`, as (path, message), by path."""
    errors = list(islice(_validator(name).iter_errors(record), MAX_PROBLEMS))
    leaves = [leaf for error in errors for leaf in _leaves(error)]
    for leaf in sorted(leaves, key=lambda leaf: [str(step) for step in leaf.absolute_path]):
        yield from _explain(leaf)


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    """Yield an error. For `anyOf` and `oneOf`, yield the errors of the matching branch."""
    if error.validator not in {"anyOf", "oneOf"} or not error.context:
        yield error
        return
    branches: dict[int, list[ValidationError]] = {}
    for child in error.context:
        branches.setdefault(int(child.schema_path[0]), []).append(child)
    matching = [
        branch
        for branch in branches.values()
        if all(child.validator != "type" or child.path for child in branch)
    ]
    if len(matching) == 1:
        for child in matching[0]:
            yield from _leaves(child)
    else:
        yield error


def _explain(error: ValidationError) -> Iterator[tuple[tuple[str | int, ...], str]]:
    path = tuple(error.absolute_path)
    value: Any = error.instance
    required: Any = error.validator_value
    schema: Any = error.schema
    match error.validator:
        case "additionalProperties":
            known = sorted(schema.get("properties", {}))
            for key in sorted(str(key) for key in value if key not in known):
                name = _shortened(key)
                yield (*path, name), f"unknown key {name!r}; {_suggestion(name, known)}"
        case "required":
            for key in required:
                if key not in value and repr(key) in error.message:
                    yield path, f"{key!r} is missing"
        case keyword:
            if list(error.schema_path)[-2:-1] == ["propertyNames"]:
                path = (*path, value)
            expected = _expected(str(keyword), required, schema.get("description"))
            message = f"found {short_json(value)}; expected {expected}"
            yield path, message if expected else error.message[:300]


def _expected(keyword: str, required: Any, description: str | None) -> str | None:
    """Return what a keyword of a schema requires, in words, or None for a keyword without any."""
    match keyword:
        case "type":
            return _type_name(required)
        case "enum":
            return "one of " + ", ".join(json.dumps(value) for value in required)
        case "const":
            return json.dumps(required)
        case "minProperties" | "maxProperties":
            return description
        case "anyOf" | "oneOf":
            return description or "one of the documented forms"
        case "pattern":
            return description or f"text matching {required}"
        case "minimum":
            return f"{required} or more"
        case "exclusiveMinimum":
            return f"more than {required}"
        case "maximum":
            return f"{required} or less"
        case "minItems" | "minLength":
            return "something, not nothing" if required == 1 else f"at least {required} of them"
        case _:
            return None


def _suggestion(key: str, known: list[str]) -> str:
    close = near_names(key, known)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"


_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def _type_name(required: str | list[str]) -> str:
    types = [required] if isinstance(required, str) else required
    return " or ".join(_TYPE_NAMES.get(name, name) for name in types)


def short_json(value: Any) -> str:
    """Return a value as JSON that fits a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    length = len(value if isinstance(value, str) else text)
    shown = _shortened(text)
    return shown if shown == text else f"{shown} ({length:,} characters)"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def dotted(path: tuple[str | int, ...]) -> str:
    """Return a path as a person writes it: ``runtime.agent.command[0]``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def pointer(path: tuple[str | int, ...]) -> str:
    """Return a path as a JSON pointer."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def read_toml(path: Path, schema: str) -> JsonObject:
    """Return the content of a TOML file that fits a schema. Raises `InvalidInput`."""
    values = read_toml_document(path)
    refuse_problems(path, problems(values, schema))
    return values


def read_toml_document(path: Path) -> JsonObject:
    """Return the content of a TOML file. Raises `InvalidInput`."""
    # Imported late: most commands read no such file.
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        message = error.strerror or str(error)
        raise InvalidInput(f"cannot read {path}", [Problem(str(path), message)]) from error
    # A ValueError: a syntax error, bytes that are not UTF-8, or a number of thousands of digits.
    except (ValueError, RecursionError) as error:
        problem = Problem(str(path), f"is not TOML: {error}")
        raise InvalidInput(f"cannot read {path}", [problem]) from error


def refuse_problems(path: Path, problems_at: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Raise `InvalidInput` if a file has problems, each at a field."""
    located = located_problems(path, problems_at)
    if located:
        raise InvalidInput(f"cannot read {path}", list(located))


def located_problems(
    path: Path, problems_at: Iterable[tuple[tuple[str | int, ...], str]]
) -> tuple[Problem, ...]:
    """Return problems at fields as problems of a file."""
    return tuple(
        Problem(str(path), message, field=dotted(at) or None) for at, message in problems_at
    )
