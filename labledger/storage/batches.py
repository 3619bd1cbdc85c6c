"""Split iterables into batches, so that memory does not grow with what is read or written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield `items` in lists of up to `size`. Nothing is read ahead of the list that is yielded."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
