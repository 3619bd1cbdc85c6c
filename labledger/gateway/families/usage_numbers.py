"""Usage numbers of an answer: merged, compared, and checked for unknown ones.

The numbers of a stream are cumulative, so the largest value of each applies. A later zero is a
placeholder. Any other smaller number makes the cost unknown. So does an unknown number other than
0, because it may be a charge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeGuard

from labledger.records import JsonObject
from labledger.records.model_calls import Usage

MAX_SEARCHES = 10**6
"""More searches than any call has."""
MAX_TOKENS = 10**9
"""More tokens of one kind than any call has. A larger number is not a number of tokens.

The limit keeps costs within SQLite's integers.
"""
_MAX_DEPTH = 8
"""The depth to which objects are merged. Below it, the last one applies."""
_MAX_NUMBERS = 1000
"""The most numbers of one usage that are examined."""


_NUMBER = re.compile(r"\s*[-+]?\d{1,40}(\.\d{0,40})?\s*", re.ASCII)
"""A number that is written as a text."""


class SaidUsage:
    """The usage in all parts of an answer, as one object."""

    def __init__(self) -> None:
        self.numbers: JsonObject = {}
        """The largest value of each number, and the last of every other value."""
        self.fallen: dict[str, tuple[float, float]] = {}
        """Numbers that a later part lowered, each with its largest and its last value."""

    def take(self, usage: Any, *, placeholders: Collection[str] = ()) -> None:
        """Add the numbers of a part of the answer. It may lower the numbers in `placeholders`."""
        if isinstance(usage, dict):
            self.numbers = self._merged(self.numbers, usage, "")
            for name in placeholders:
                if name in self.fallen:
                    guess, now = self.fallen.pop(name)
                    self.numbers[name] = now or guess

    def _merged(self, numbers: Mapping[str, Any], more: Mapping[str, Any], path: str) -> JsonObject:
        merged = dict(numbers)
        for name, value in more.items():
            at, earlier = path + name, merged.get(name)
            if value is None:
                merged.setdefault(name, None)
            elif isinstance(value, dict) and at.count(".") < _MAX_DEPTH:
                before = earlier if isinstance(earlier, dict) else {}
                merged[name] = self._merged(before, value, f"{at}.")
            elif is_number(value) and is_number(earlier) and value < earlier:
                self.fallen[at] = (earlier, value)
            elif (
                isinstance(value, list) and isinstance(earlier, list) and len(value) < len(earlier)
            ):
                continue
            else:
                merged[name] = value
        return merged

    @property
    def contradictions(self) -> str | None:
        """A sentence about the numbers that fell; None if none did."""
        fallen = [f"{at} fell from {was} to {now}" for at, (was, now) in self.fallen.items()]
        return ", ".join(fallen[:5]) or None

    def fell(self, name: str) -> bool:
        """Return whether a number, or one below it, fell to a value other than 0."""
        return any(now and at.split(".")[0] == name for at, (_, now) in self.fallen.items())

    @property
    def is_contradictory(self) -> bool:
        """Whether any number fell to a value other than 0."""
        return any(now for _, now in self.fallen.values())


def unknown_number(usage: Mapping[str, Any], known: Collection[str]) -> str | None:
    """Return the first unknown number of a usage other than 0, as `a.b = 3`; None without one.

    A path in `known` names a number or, with `.*` at its end, all numbers below it. The items of
    an array are below its name.
    """
    for looked_at, (path, number) in enumerate(_numbers(usage, "")):
        if looked_at >= _MAX_NUMBERS:
            return f"more than {_MAX_NUMBERS} numbers"
        if number and path not in known and not any(_is_below(path, name) for name in known):
            return f"{path[:100]} = {number}"
    return None


def _is_below(path: str, name: str) -> bool:
    return name.endswith(".*") and path.startswith(name[:-1])


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    # Without recursion, because a provider may send deeply nested data.
    pending = [(path, value)]
    while pending:
        at, value = pending.pop()
        if is_number(value):
            yield at, value
        elif isinstance(value, str) and _NUMBER.fullmatch(value):
            yield at, float(value)
        elif isinstance(value, dict):
            members = [(f"{at}.{name}" if at else name, member) for name, member in value.items()]
            pending.extend(reversed(members))
        elif isinstance(value, list):
            pending.extend((at, item) for item in reversed(value))


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def count(usage: Mapping[str, Any], name: str, default: int | None = 0) -> int:
    """Return a number of tokens; `default` if it is absent or null. 1000.0 counts as 1000.

    Raises `ValueError` if it is not a number of tokens, or is absent without a default.
    """
    value = usage.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise ValueError(f"it does not say {name}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"{name} is not a number of tokens")
    return value


def check_total(usage: Mapping[str, Any], name: str, expected: int) -> None:
    """Raise `ValueError` if a usage states a total that is not the sum of its parts.

    A total of 0 is a placeholder.
    """
    total = count(usage, name)
    if total not in {0, expected}:
        raise ValueError(f"{name} is {total}, and its parts are {expected}")


def combined(usages: Iterable[Usage]) -> Usage:
    """Return the tokens of several requests together."""
    usages = list(usages)
    return Usage(**{name: sum(getattr(one, name) for one in usages) for name in _KINDS})


_KINDS = tuple(field.name for field in fields(Usage))
