"""Checks the parameters of a request. Unknown and malformed parameters are errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labledger.errors import InvalidInput, Problem

MAX_TEXT = 10_000
"""The maximum length of a parameter, in characters."""
FORMAT = "format"


class Parameters:
    """The parameters of one request. Each method raises `InvalidInput` for a wrong value."""

    def __init__(
        self,
        values: Sequence[tuple[str, str]],
        known: Sequence[str] = (),
        path: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path or {}
        self._values: dict[str, list[str]] = {}
        for name, value in values:
            if name not in known and name != FORMAT:
                _refuse(name, f"is unknown here; expected one of {', '.join((*known, FORMAT))}")
            if len(value) > MAX_TEXT:
                _refuse(name, f"has {len(value):,} characters; at most {MAX_TEXT:,} are read")
            self._values.setdefault(name, []).append(value)

    @property
    def run_id(self) -> str:
        """The run that the path names."""
        return self._path["run_id"]

    @property
    def schedule_idx(self) -> int:
        """The slot that the path names."""
        return _number("slot", self._path["schedule_idx"], 0, 2**53)

    def text(self, name: str) -> str | None:
        """Return the value of a parameter; None if it is missing or empty."""
        values = self._values.get(name, [])
        if len(values) > 1:
            _refuse(name, f"is given {len(values)} times; expected once")
        return values[0] or None if values else None

    def texts(self, name: str) -> tuple[str, ...]:
        """Return every value of a parameter."""
        return tuple(self._values.get(name, ()))

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of `choices`; the first if the parameter is missing."""
        value = self.text(name) or choices[0]
        if value not in choices:
            _refuse(
                name, f"found {value[:80]!r}; expected one of {', '.join(filter(None, choices))}"
            )
        return value

    def number(self, name: str, default: int, low: int = 0, high: int = 2**53) -> int:
        """Return a whole number from `low` to `high`."""
        value = self.text(name)
        return default if value is None else _number(name, value, low, high)


def _number(name: str, value: str, low: int, high: int) -> int:
    if not (value.isascii() and value.isdecimal()):
        _refuse(name, f"found {value[:80]!r}; expected a whole number")
    if len(value) > 17:
        _refuse(name, f"found {value[:80]!r}; expected {low:,} to {high:,}")
    if not low <= int(value) <= high:
        _refuse(name, f"found {int(value):,}; expected {low:,} to {high:,}")
    return int(value)


def _refuse(name: str, message: str) -> None:
    raise InvalidInput("the request", [Problem(name[:80], message)])
