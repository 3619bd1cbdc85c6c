"""Numbers with nouns, quoted names, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_LONGEST_QUOTED = 60
_MIN_SIMILARITY, _MIN_SIMILARITY_SHORT = 0.7, 0.6
"""The similarity, from 0 to 1, from which a known name is suggested. The second value is for names
of up to three letters. It allows one different letter."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 trial`` or ``1,200 trials``.

    The plural of `noun` must be formed with s.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def counted_of(part: int, total: int, noun: str) -> str:
    """Return a part with its total, such as ``0 of 1 trial``; the noun is as for `counted`."""
    return f"{part:,} of {counted(total, noun)}"


def model_labels(models: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """Return a label for each pair of provider and model: the model's name.

    If several providers in the list have the same model, the provider's name is put before it.
    """
    providers: dict[str | None, set[str | None]] = {}
    for provider, model in models:
        providers.setdefault(model, set()).add(provider)
    return [
        f"{provider}/{model}" if provider and len(providers[model]) > 1 else model or ""
        for provider, model in models
    ]


def quoted(text: str) -> str:
    """Return text in quotes. Long text is cut, and followed by its length."""
    if len(text) <= _LONGEST_QUOTED:
        return repr(text)
    return f"{text[:_LONGEST_QUOTED]!r}… ({len(text):,} characters)"


def named_briefly(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def near_names(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` known names that are similar to `name`, the most similar first."""
    cutoff = _MIN_SIMILARITY_SHORT if len(name) <= 3 else _MIN_SIMILARITY
    return difflib.get_close_matches(name, list(known), n=count, cutoff=cutoff)
