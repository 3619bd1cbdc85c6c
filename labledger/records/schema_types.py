"""Types of fields with what their JSON Schema says beside the type.

`scripts/schemas.py` generates the schemas of documents from their dataclasses. In an annotation
such as ``Annotated[float, ("minimum", 0)]`` each pair is a keyword of JSON Schema and its value.
"""

from __future__ import annotations

from typing import Annotated

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
