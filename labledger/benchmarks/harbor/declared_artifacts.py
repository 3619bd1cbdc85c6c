"""The artifacts that a task declares, and the ones that Harbor takes.

Harbor stores each artifact of a trial in a place on the host. If two places overlap, it keeps only
the first artifact, unless the first one contains the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

PUBLISHED = "/logs/artifacts"
"""The folder that Harbor takes from every task."""


@dataclass(frozen=True, slots=True)
class HarborArtifact:
    """A path that is taken from the agent's container."""

    source: str
    destination: str | None = None
    """Its place on Harbor's host. A separate verifier gets it at `source`."""
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @property
    def stored_at(self) -> PurePosixPath:
        """The place on Harbor's host, below the trial's folder of artifacts."""
        return PurePosixPath((self.destination or self.source).lstrip("/") or ".")


def split_artifacts(
    declared: Sequence[HarborArtifact],
) -> tuple[tuple[HarborArtifact, ...], tuple[tuple[HarborArtifact, HarborArtifact], ...]]:
    """Return the artifacts that Harbor takes, and pairs of an artifact and one left out for it."""
    published = HarborArtifact(PUBLISHED)
    is_declared = any(artifact.source.rstrip("/") == PUBLISHED for artifact in declared)
    claimed = [] if is_declared else [published]
    taken, left_out = [], []
    for artifact in declared:
        if not any(_covers(earlier, artifact) for earlier in claimed):
            clash = next((earlier for earlier in claimed if _overlap(earlier, artifact)), None)
            if clash is not None:
                left_out.append((clash, artifact))
                continue
            claimed.append(artifact)
        taken.append(artifact)
    return tuple(taken), tuple(left_out)


def _overlap(first: HarborArtifact, second: HarborArtifact) -> bool:
    """Return whether Harbor stores two artifacts in places that overlap."""
    a, b = first.stored_at, second.stored_at
    return a.is_relative_to(b) or b.is_relative_to(a)


def _covers(first: HarborArtifact, second: HarborArtifact) -> bool:
    """Return whether an earlier artifact contains a later one, in the same place."""
    outer, inner = PurePosixPath(first.source), PurePosixPath(second.source)
    if (first.service or "main") != (second.service or "main"):
        return False
    if not inner.is_relative_to(outer):
        return False
    if outer == inner and first.stored_at == second.stored_at:
        return first.exclude == second.exclude
    moved = first.stored_at / inner.relative_to(outer)
    return not first.exclude and second.stored_at == moved
