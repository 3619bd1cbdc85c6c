"""`labledger delete`: removes a run, its regradings and its folder, and leaves tombstones.

The rows go first, in one transaction; from then on the run is deleted. Then its folder, by a
rename, so that it is there as a whole or not at all. What a kill in between leaves, and the
artifacts that nothing names any more, garbage collection removes. Used by the API.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from labledger import faults
from labledger.errors import InvalidInput, Parameter, Problem
from labledger.ledger.read.tombstones import Tombstone
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.maintenance.garbage_collection import (
    DELETED_PREFIX,
    refuse_live_run,
    remove_tree,
)
from labledger.records import JsonObject
from labledger.run_control.process_identity import process_is_dead
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.lab_folder import LabFolder

_MAX_BECAUSE = 10_000


@dataclass(frozen=True, slots=True)
class DeletedRun:
    """A run that was deleted, or would be."""

    run_id: str
    committed: int
    """How many slots are committed."""
    total: int
    """How many slots its schedule has."""
    chain_head: str
    """The digest of its last commit, or of its creation if there is none."""

    def as_json(self) -> JsonObject:
        """Return the fields as a JSON object."""
        return asdict(self)


def delete_run(
    lab: LabFolder, run_id: str, because: str, *, dry_run: bool = False
) -> list[DeletedRun]:
    """Delete a run and its regradings, and return them; with `dry_run`, only return them.

    Raises `RunNotFound`, `LeaseHeld` if a coordinator owns one of them, and `InvalidInput` for a
    regrading or a missing reason.
    """
    if not because.strip() or len(because) > _MAX_BECAUSE:
        message = f"found {len(because):,} characters; expected a text of at most {_MAX_BECAUSE:,}"
        raise InvalidInput("the reason", [Problem(Parameter("because"), message)])
    with LedgerReader.open(lab.ledger) as reader:
        runs = _runs(reader, run_id)
        if dry_run:
            for run in runs:
                refuse_live_run(reader.run(run.run_id))
            return runs
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        stones = writer.delete_run(run_id, because, process_is_dead)
        faults.fault_point("after_delete")
        _remove_folders(lab, stones)
    totals = {run.run_id: run.total for run in runs}
    return [
        DeletedRun(stone.run_id, stone.committed, totals.get(stone.run_id, 0), stone.chain_head)
        for stone in stones
    ]


def _runs(reader: LedgerReader, run_id: str) -> list[DeletedRun]:
    runs = []
    for name in reader.with_regradings(run_id):
        run = reader.run(name)
        head = reader.chain_head(name)
        runs.append(DeletedRun(name, run.next_schedule_idx, run.total_slots, head))
    return runs


def _remove_folders(lab: LabFolder, stones: Sequence[Tombstone]) -> None:
    """Remove the runs' folders and the events of their staged results."""
    staged = ArtifactStore(lab.artifacts).staged_events
    for stone in stones:
        folder = lab.run_folder(stone.run_id)
        if folder.is_dir():
            renamed = folder.with_name(f"{DELETED_PREFIX}{secrets.token_hex(8)}")
            folder.rename(renamed)
            remove_tree(renamed)
        remove_tree(staged / stone.run_id)
