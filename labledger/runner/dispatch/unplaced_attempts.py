"""The attempts for which no host had room when they were due, by what they ask for.

They wait here while later slots go on, and are offered before these at each turn. Attempts that ask
for the same, with the same image, are placed or refused alike, so only the first of each kind is
tried: a turn costs the same however many wait. Used by the coordinator's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice

from labledger.executors.placement import Needs, needs_of
from labledger.trial.attempt_spec import AttemptSpec

_MAX_KINDS_PER_TURN = 8
"""How many kinds are tried in one turn. The others have their turn after them."""


class UnplacedAttempts:
    """Attempts that wait for a host; nothing of them is journaled."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[Needs, str], list[tuple[int, int, AttemptSpec]]] = {}
        """Heaps of slot, attempt number and attempt."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, spec: AttemptSpec) -> None:
        """Let an attempt wait."""
        heap = self._kinds.setdefault(_kind_of(spec), [])
        heappush(heap, (spec.slot.schedule_idx, spec.attempt, spec))
        self._count += 1

    def has_like(self, spec: AttemptSpec) -> bool:
        """Return whether an attempt that asks for the same as `spec` waits."""
        return bool(self._kinds) and _kind_of(spec) in self._kinds

    def place(
        self,
        place: Callable[[AttemptSpec], AttemptSpec | None],
        limit: int,
        is_dropped: Callable[[AttemptSpec], bool],
    ) -> list[AttemptSpec]:
        """Remove and return the attempts that `place` places now, at most `limit`.

        Of each kind the lowest slots come first. Attempts for which `is_dropped` is true are
        removed as well, when it is their turn.
        """
        placed: list[AttemptSpec] = []
        for kind in list(islice(self._kinds, _MAX_KINDS_PER_TURN)):
            heap = self._kinds.pop(kind)
            while heap and len(placed) < limit:
                first = heap[0][-1]
                if not is_dropped(first):
                    spec = place(first)
                    if spec is None:
                        break
                    placed.append(spec)
                heappop(heap)
                self._count -= 1
            if heap:
                self._kinds[kind] = heap
        return placed


def _kind_of(spec: AttemptSpec) -> tuple[Needs, str]:
    return needs_of(spec), spec.image_id
