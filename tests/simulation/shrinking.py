"""Find the shortest story of a failure: the mishaps that it needs.

Leaving out a mishap changes chance from there on, so another world of the seed fails. Its story
is the same if the same guarantee fails. Its story is the same if the same guarantee fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Story:
    """The events of one world."""

    left_out: Collection[str]
    mishaps: Collection[str]
    """The mishaps that chance chose, including those left out."""
    failure: str | None
    log: str
    design: str

    @property
    def happened(self) -> list[str]:
        """The mishaps that were not left out."""
        return [name for name in self.mishaps if name not in self.left_out]

    @property
    def guarantee(self) -> str:
        """The kind of the failure, or the guarantee that was violated."""
        return ":".join((self.failure or "").split(":")[:2])


def shrink(story: Story, simulate: Callable[[Collection[str]], Story | None]) -> Story:
    """Return a story with the same failure that needs each of its mishaps.

    `simulate` returns the story of the same seed without some mishaps, or None.
    """
    shortest, size = story, max(len(story.happened) // 2, 1)
    while True:
        shorter = _without_some(shortest, size, simulate)
        if shorter is not None:
            shortest = shorter
        elif size == 1:
            return shortest
        size = max(min(size // 2 if shorter is None else size, len(shortest.happened) // 2), 1)


def _without_some(
    story: Story, size: int, simulate: Callable[[Collection[str]], Story | None]
) -> Story | None:
    """Return a story with the same failure, without this many neighboring mishaps."""
    happened = story.happened
    for first in range(0, len(happened), size):
        shorter = simulate([*story.left_out, *happened[first : first + size]])
        is_same = shorter is not None and shorter.guarantee == story.guarantee
        if is_same and len(shorter.happened) < len(happened):
            return shorter
    return None
