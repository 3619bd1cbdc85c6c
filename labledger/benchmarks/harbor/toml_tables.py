"""Read the fields of a TOML table, and collect each problem with the file and the key.

A table gives out its fields one by one. What is left at the end is unknown and a problem: a runner
that ignores a field that it does not know produces plausible wrong numbers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

from labledger.errors import Problem
from labledger.text import near_names

T = TypeVar("T")


class TomlTable:
    """A table whose fields are read one by one."""

    def __init__(
        self, file: Path, values: dict[str, Any], problems: list[Problem], key: str = ""
    ) -> None:
        self._file = file
        self._values = dict(values)
        self._problems = problems
        self._key = key
        self._known: list[str] = []

    def has(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> Any:
        """Return a field as it is, None if it is missing."""
        self._known.append(name)
        return self._values.pop(name, None)

    def text(self, name: str, default: str | None = None, *, required: bool = False) -> str | None:
        value = self.value(name)
        if value is None:
            if required:
                self.add_problem(name, "is missing")
            return default
        return value if isinstance(value, str) else self._wrong(name, "text", value, default)

    def number(self, name: str, default: float | None = None, *, least: float = 0) -> float | None:
        """Return a finite number of at least `least`."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._wrong(name, "a number", value, default)
        if not math.isfinite(value) or value < least:
            return self._wrong(name, f"a finite number of at least {least:g}", value, default)
        return int(value) if float(value).is_integer() else value

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int | None:
        """Return a whole number of at least `least`."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            return self._wrong(name, f"a whole number of at least {least}", value, default)
        return value

    def flag(self, name: str) -> bool | None:
        value = self.value(name)
        if isinstance(value, bool):
            return value
        return None if value is None else self._wrong(name, "true or false", value, None)

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.value(name)
        if isinstance(value, str) and value in choices:
            return value
        return None if value is None else self._wrong(name, " or ".join(choices), value, None)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return a list of text, None if it is missing."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            return self._wrong(name, "a list of text", value, None)
        return tuple(value)

    def env(self, name: str) -> dict[str, str]:
        """Return a table of environment variables."""
        value = self.value(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(name, "a table of text", value, None)
            return {}
        for key, item in value.items():
            if not isinstance(item, str):
                self.add_problem(f"{name}.{key}", f"found {item!r}; expected text")
            elif not key.isidentifier() or not key.isascii():
                self.add_problem(f"{name}.{key}", "is not the name of an environment variable")
        return {key: item for key, item in value.items() if isinstance(item, str)}

    def user(self, name: str) -> str | None:
        """Return a user's name or number as text."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            return self._wrong(name, "a user's name or number", value, None)
        return str(value)

    def table(self, name: str) -> TomlTable:
        """Return a subtable, empty if it is missing."""
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            value = self._wrong(name, "a table", value, None)
        return self.part(name, value or {})

    def tables(self, name: str) -> list[TomlTable]:
        """Return the tables of an array, none if it is missing."""
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self._wrong(name, "an array of tables", value, None)
            return []
        return [self.part(f"{name}[{i}]", item) for i, item in enumerate(value)]

    def part(self, name: str, values: dict[str, Any]) -> TomlTable:
        """Return a table that is at `name` of this one."""
        return TomlTable(self._file, values, self._problems, self._path(name))

    def end(self) -> None:
        """Add a problem for each field that was not read."""
        for name in self._values:
            close = near_names(name, self._known)
            hint = f"did you mean {close[0]}?" if close else None
            self.add_problem(name, "is not a key of this format", hint)

    def add_problem(self, name: str, message: str, hint: str | None = None) -> None:
        self._problems.append(Problem(str(self._file), message, field=self._path(name), hint=hint))

    def _wrong(self, name: str, expected: str, value: Any, default: T) -> T:
        self.add_problem(name, f"found {value!r}; expected {expected}")
        return default

    def _path(self, name: str) -> str:
        return f"{self._key}.{name}" if self._key else name
