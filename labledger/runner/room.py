"""Whether there is room: where the lab lies, and where the Docker engine keeps its containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.records import JsonObject
from labledger.trial import disks

MIN_FREE_BYTES = 512 << 20
"""What must be free before a run begins and before each dispatch, unless the user says else."""

_MIN_FREE_INODES = 1000


@dataclass(frozen=True, slots=True)
class Room:
    """The places that a run fills, and what must stay free in each."""

    places: Mapping[Path, str]
    """What each place is for, by its path."""
    min_free_bytes: int = MIN_FREE_BYTES

    @classmethod
    def of(
        cls, lab_root: Path, engine_info: JsonObject, min_free_bytes: int = MIN_FREE_BYTES
    ) -> Room:
        """The lab's folder, and the engine's own where it lies on this machine."""
        places = {lab_root: "the lab"}
        if (root := engine_root(engine_info)) is not None:
            places[root] = "Docker's containers"
        return cls(places, min_free_bytes)

    def shortage(self) -> str | None:
        """How much is missing where; None where there is room."""
        found = (self._shortage_at(place, what) for place, what in self.places.items())
        return next((shortage for shortage in found if shortage), None)

    def report(self) -> str:
        """What is free where, for a person."""
        found = ((place, disks.free_space(place)) for place in self.places)
        return ", ".join(
            f"{free.bytes / 1e9:.1f} GB free at {place}" for place, free in found if free
        )

    def _shortage_at(self, place: Path, what: str) -> str | None:
        free = disks.free_space(place)
        if free is None:
            return None
        if free.bytes < self.min_free_bytes:
            missing = self.min_free_bytes - free.bytes
            return (
                f"{_megabytes(missing)} more must be free at {place}, for {what}: "
                f"{_megabytes(free.bytes)} are free, --min-free asks for "
                f"{_megabytes(self.min_free_bytes)}"
            )
        if free.is_full:
            return f"the disk is full at {place}, for {what}"
        if free.files is not None and self.min_free_bytes > 0 and free.files < _MIN_FREE_INODES:
            return f"only {free.files} more files can be made at {place}, for {what}"
        return None


def engine_root(engine_info: JsonObject) -> Path | None:
    """Where the engine keeps its containers, if that lies on this machine."""
    root = Path(engine_info.get("DockerRootDir") or "")
    return root if root.is_absolute() and disks.free_space(root) is not None else None


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
