"""Rescue a run whose ledger was removed or replaced while a coordinator wrote to it.

The coordinator still has the files open. It copies them into the lab folder, with what waits to be
committed and the journal of containers, before they are gone with the process. Nothing that belongs
to the run is removed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from labledger import clock
from labledger.errors import LabLedgerError
from labledger.export import run_folder
from labledger.ledger.read.lookup import ledger_holds_run
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.lab_folder import LabFolder


def rescue_run(lab: LabFolder, writer: LedgerWriter, run_id: str) -> str:
    """Save the ledger that the writer has open, and return how to get the run back."""
    timestamp = clock.utc_now().replace(":", "").replace("-", "").replace(".", "")
    saved = lab.root / f"ledger.sqlite.replaced-{timestamp}"
    try:
        lab.create()
        writer.save_replaced(saved)
    except (LabLedgerError, OSError) as error:
        return (
            f"it could not be saved: {error}; `labledger import {lab.run_folder(run_id)}` adds "
            "what its mirrors hold, if the run folder is still there"
        )
    with suppress(LabLedgerError, OSError):
        _complete_mirrors(lab, saved, run_id)
    return (
        f"what was written is saved in {saved}, and every container and trial folder of the run "
        f"was left alone. If the ledger that is there now holds nothing new, put {saved.name} in "
        f"the place of {lab.ledger} and delete {lab.ledger.name}-wal and {lab.ledger.name}-shm: "
        f"`labledger resume {run_id}` then goes on where the run stopped. Otherwise "
        f"`labledger import {saved} --run {run_id}` adds what was committed"
    )


def _complete_mirrors(lab: LabFolder, saved: Path, run_id: str) -> None:
    """Write the chain file that an import of the run folder needs, unless another ledger has it."""
    folder = lab.run_folder(run_id)
    if folder.is_dir() and not ledger_holds_run(lab.ledger, run_id):
        with LedgerReader.open(saved, ArtifactStore(lab.artifacts)) as reader:
            run_folder.write_chain(reader, run_id, folder / run_folder.CHAIN_PATH)
