"""Record schemas by name, and what a person is told when a record does not fit one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from labledger import resources
from labledger.errors import SchemaInvalid

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError


@cache
def load(name: str) -> dict[str, Any]:
    """The JSON Schema called `name`, such as ``benchmark_score_record_v1``."""
    text = (resources.schemas() / f"{name}.jsonschema").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def _validator(name: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(load(name))


def check(record: Any, name: str) -> None:
    """Raise `SchemaInvalid` with the first problem of `record` against the schema `name`."""
    validator = _validator(name)
    if validator.is_valid(record):
        return
    path, message = next(problems(record, name))
    raise SchemaInvalid(f"{dotted(path) or 'record'}: {message}", pointer=pointer(path))


def problems(record: Any, name: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every problem of `record` against the schema `name`, as (path, message), in path order."""
    errors = list(_validator(name).iter_errors(record))
    leaves = [leaf for error in errors for leaf in _leaves(error)]
    for leaf in sorted(leaves, key=lambda leaf: [str(step) for step in leaf.absolute_path]):
        yield from _explain(leaf)


def _leaves(error: ValidationError) -> Iterator[ValidationError]:
    """Of an `anyOf` or `oneOf`, the problems of the branch that the value was closest to."""
    if error.validator not in {"anyOf", "oneOf"} or not error.context:
        yield error
        return
    branches: dict[int, list[ValidationError]] = {}
    for child in error.context:
        branches.setdefault(int(child.schema_path[0]), []).append(child)
    right_type = [b for b in branches.values() if all(e.validator != "type" or e.path for e in b)]
    if len(right_type) == 1:
        for child in right_type[0]:
            yield from _leaves(child)
    else:
        yield error


def _explain(error: ValidationError) -> Iterator[tuple[tuple[str | int, ...], str]]:
    path = tuple(error.absolute_path)
    match error.validator:
        case "additionalProperties":
            known = sorted(error.schema.get("properties", {}))
            for key in sorted(set(error.instance) - set(known)):
                yield (*path, key), f"unknown key {key!r}; {_nearest(key, known)}"
        case "required":
            missing = [key for key in error.validator_value if key not in error.instance]
            for key in missing:
                if repr(key) in error.message:
                    yield path, f"{key!r} is missing"
        case _:
            expected = _expected(error)
            found = _show(error.instance)
            yield path, f"found {found}; expected {expected}" if expected else error.message[:300]


def _expected(error: ValidationError) -> str | None:
    wanted = error.validator_value
    match error.validator:
        case "type":
            return _type_name(wanted)
        case "enum":
            return "one of " + ", ".join(json.dumps(value) for value in wanted)
        case "const":
            return json.dumps(wanted)
        case "anyOf" | "oneOf":
            return error.schema.get("description") or "one of the documented forms"
        case "pattern":
            return error.schema.get("description") or f"text matching {wanted}"
        case "minimum":
            return f"{wanted} or more"
        case "exclusiveMinimum":
            return f"more than {wanted}"
        case "maximum":
            return f"{wanted} or less"
        case "minItems" | "minLength":
            return "something, not nothing" if wanted == 1 else f"at least {wanted} of them"
        case _:
            return None


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"


_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def _type_name(wanted: str | list[str]) -> str:
    types = [wanted] if isinstance(wanted, str) else wanted
    return " or ".join(_TYPE_NAMES.get(name, name) for name in types)


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def dotted(path: tuple[str | int, ...]) -> str:
    """A path as a person writes it: ``runtime.agent.command[0]``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def pointer(path: tuple[str | int, ...]) -> str:
    """A path as a JSON pointer."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
