"""A lab with one complete run: real commits, mirrors, chain and summary.

Every slot has a prediction, a score, evidence, metrics, events and artifacts.
"""

from __future__ import annotations

from pathlib import Path

from bench import synthetic
from bench.report import say
from labledger.export import mirrors as run_folder
from labledger.export import summary
from labledger.export.mirrors import MirrorWriter
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database import migrations
from labledger.ledger.database.run_info import Owner
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import RunStatus

RUN = "bench"


def shared(folder: Path, *, quick: bool) -> tuple[LabFolder, int]:
    """Return the lab that several sections measure, and its slots; the first one writes it."""
    slots = 20_000 if quick else 200_000
    lab = LabFolder(folder / "committed")
    if not lab.root.exists():
        say(f"committing a run of {slots:,} slots")
        write(lab, slots)
    return lab, slots


def write(lab: LabFolder, slots: int) -> None:
    """Commit a run of `slots` slots of made-up trials, and write its run folder."""
    lab.create()
    migrations.upgrade(lab.ledger)
    folder = lab.run_folder(RUN)
    with (
        LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer,
        LedgerReader.open(lab.ledger) as reader,
        MirrorWriter(folder) as mirrors,
    ):
        # This file may be lost.
        writer.connection.driver.execute("PRAGMA synchronous = OFF")
        writer.create_run(
            synthetic.new_run(RUN), synthetic.task_rows(slots), map(synthetic.slot, range(slots))
        )
        lease = writer.leases.acquire(RUN, Owner("bench", 1, "bench"), 86_400)
        run_folder.create_run_folder(folder, reader.run(RUN))
        mirrors.repair(reader, RUN)
        for idx in range(slots):
            mirrors.append(writer.commit_result(lease, synthetic.result(RUN, synthetic.slot(idx))))
        run_folder.write_chain(reader, RUN, folder / run_folder.CHAIN_PATH)
        summary.write_summary(folder, summary.build_summary(reader, RUN))
        writer.leases.release(lease, RunStatus.COMPLETED)
