"""The resources of the machine that an attempt used, as far as the kernel counted them.

A field of `ResourceUse` is the only definition of such a number. Results, rows, columns, records,
views, tables, their schema and their documentation follow from its name, type and meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self

from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm, TypeMismatch, decoder

_MAX_INTEGER = 2**63 - 1


def _number(meaning: str) -> Any:
    """Return the field of a number that may be unknown. `meaning` is a clause without a period."""
    return field(default=None, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class ResourceUse(JsonForm):
    """The numbers of an attempt, from its first container's start to its last container's end.

    An unknown number is None, never 0. The type of a field is `int | None` or `float | None`, and
    its name ends with the unit. New fields come last, because columns keep their order. Raises
    `TypeMismatch` for a value that is not a finite number from 0 on, or that SQLite cannot store.
    """

    block_read_bytes: int | None = _number("bytes that its processes read from block devices")
    block_write_bytes: int | None = _number("bytes that its processes wrote to block devices")

    _ONLY_SET: ClassVar = True

    def __post_init__(self) -> None:
        for number in fields(self):
            value = getattr(self, number.name)
            if value is not None and not _is_storable(value, _type_of(number)):
                raise TypeMismatch(f"{value!r} cannot have been measured", (number.name,))

    @classmethod
    def from_json(cls, values: JsonObject) -> Self:
        """Return the numbers of a stored result. Raises `TypeMismatch` for an unknown name."""
        numbers: Self = decoder(cls)(values)
        return numbers

    @classmethod
    def of_record(cls, record: JsonObject) -> Self:
        """Return the numbers of a `trial_record_v1`, which has only those that are known."""
        return cls(**{name: record[name] for name in NUMBERS if name in record})


def _type_of(number: Field[Any]) -> type[int] | type[float]:
    return int if str(number.type).startswith("int") else float


def _is_storable(value: int | float, declared: type[int] | type[float]) -> bool:
    # JSON has no other form for the float 60.0 than for the integer 60.
    is_number = type(value) in {int, declared}
    return is_number and math.isfinite(value) and 0 <= value <= _MAX_INTEGER


class Number(NamedTuple):
    """The definition of a number."""

    type: type[int] | type[float]
    meaning: str
    """A clause that describes the number."""


NUMBERS: Mapping[str, Number] = {
    number.name: Number(_type_of(number), number.metadata["meaning"])
    for number in fields(ResourceUse)
}
"""All numbers by name, in the order of their columns."""

NO_NUMBERS = ResourceUse()
"""The resource use of an attempt about which nothing is known."""
