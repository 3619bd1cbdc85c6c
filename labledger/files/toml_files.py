"""Read TOML files that people write, and report every problem of one at once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from labledger.errors import InvalidInput, Problem
from labledger.records import JsonObject, json_schemas


def read_toml(path: Path, schema: str) -> JsonObject:
    """Return the content of a TOML file that fits a schema. Raises `InvalidInput`."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        message = error.strerror or str(error)
        raise InvalidInput(f"cannot read {path}", [Problem(str(path), message)]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = Problem(str(path), f"is not TOML: {error}")
        raise InvalidInput(f"cannot read {path}", [problem]) from error
    refuse_problems(path, json_schemas.problems(values, schema))
    return values


def refuse_problems(path: Path, problems: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Raise `InvalidInput` if a file has problems, each at a field."""
    located = [
        Problem(str(path), message, field=json_schemas.dotted(field) or None)
        for field, message in problems
    ]
    if located:
        raise InvalidInput(f"cannot read {path}", located)
