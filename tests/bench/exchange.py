"""Exporting and importing runs of many rows: speed, and memory that must not grow with them.

Each measurement has its own process. The baseline of an export is the bare driver with the standard
library's CSV writer. The baseline of an import is `labledger verify` of the source, a part of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import synthetic
from bench.bare import BareWriter, commit_rows
from bench.report import Row, say
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import migrations, statements
from labledger.ledger.database.run_info import Lease, Owner
from labledger.ledger.rows import digest_chain, slot_rows
from labledger.ledger.writer import LedgerWriter
from labledger.records.identity import Stamp, TrialIds

GOAL_GROWTH = 1.25
"""The ratio that counts as flat memory for ten times the rows."""

FORMATS = ("jsonl", "csv", "parquet")
_RUN = "bench"
_NOW = "2026-01-31T12:00:02.000Z"
_FILL_BATCH = 1_000

_MEASURED = """
import csv, json, resource, sys, time
from pathlib import Path

def report(begun, **more):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": time.perf_counter() - begun, "peak_mb": peak, **more}))

ledger, out = Path(sys.argv[1]), Path(sys.argv[2])
"""
_EXPORT = """
from labledger import open_ledger
begun = time.perf_counter()
with open_ledger(ledger) as opened:
    opened.export("bench", "events", out, format=sys.argv[3])
report(begun)
"""
_BARE_EXPORT = """
from labledger.ledger.database.sqlite import DRIVER
begun = time.perf_counter()
raw = DRIVER.connect(str(ledger))
found = raw.execute(
    "SELECT schedule_idx, trial_id, variant_id, task_id, repl_idx, row_seq, type, body "
    "FROM events WHERE run_id = 'bench'"
)
with out.open("w", newline="") as file:
    csv.writer(file).writerows(found)
raw.close()
report(begun)
"""
_VERIFY = """
from labledger.ledger.checking.verify import verify
begun = time.perf_counter()
assert verify(ledger).is_clean
report(begun)
"""
_IMPORT = """
from labledger.ledger.exchange.import_writer import ImportWriter
from labledger.upkeep.import_runs import import_source
from labledger.files.lab_folder import LabFolder
bring, held, log = ImportWriter.import_run, [], []
def timed(*given):
    begun = time.perf_counter()
    found = bring(*given)
    held.append(time.perf_counter() - begun)
    log.append((out / "ledger.sqlite-wal").stat().st_size)
    return found
ImportWriter.import_run = timed
begun = time.perf_counter()
import_source(LabFolder(out), ledger)
report(begun, locked_s=held[0], log_mb=log[0] / 2**20)
"""


def exports(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Measure the export of a run's events, ten per slot."""
    few, many = _sizes(quick)
    peaks = dict.fromkeys(FORMATS, 0.0)
    for slots in (few, many):
        ledger = _filled(folder, slots)
        count = slots * synthetic.EVENTS
        plain = _measure(_BARE_EXPORT, ledger, folder / "plain.csv")
        for form in FORMATS:
            ours = _measure(_EXPORT, ledger, folder / f"events.{form}", form)
            if slots == few:
                peaks[form] = ours["peak_mb"]
                continue
            yield Row(
                f"events as {form}, {count:,} rows",
                f"{count / ours['seconds']:,.0f} rows/s",
                f"{count / plain['seconds']:,.0f} rows/s bare driver, csv",
                f"{ours['seconds'] / plain['seconds']:.2f}",
            )
            growth = ours["peak_mb"] / peaks[form]
            yield Row(
                f"  peak memory, {count:,} rows",
                f"{ours['peak_mb']:.0f} MB",
                f"{peaks[form]:.0f} MB at {few * synthetic.EVENTS:,}",
                f"{growth:.2f}",
                f"≤ {GOAL_GROWTH}",
                growth <= GOAL_GROWTH,
            )


def imports(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Measure the import of a run with 26 rows and eight artifacts per slot."""
    few, many = _sizes(quick)
    measured = {}
    for slots in (few, many):
        ledger = _filled(folder, slots)
        verified = _measure(_VERIFY, ledger, folder)
        measured[slots] = _measure(_IMPORT, ledger, folder / f"imported-{slots}")
    ours = measured[many]
    yield Row(
        f"import of a run of {many:,} slots",
        f"{ours['seconds']:.0f} s, {many / ours['seconds']:,.0f} slots/s",
        f"{verified['seconds']:.0f} s verify alone",
        f"{ours['seconds'] / verified['seconds']:.2f}",
    )
    growth = ours["peak_mb"] / measured[few]["peak_mb"]
    yield Row(
        f"  peak memory, {many:,} slots",
        f"{ours['peak_mb']:.0f} MB",
        f"{measured[few]['peak_mb']:.0f} MB at {few:,}",
        f"{growth:.2f}",
        f"≤ {GOAL_GROWTH}",
        growth <= GOAL_GROWTH,
    )
    yield Row("  its one transaction", f"{ours['locked_s']:.1f} s, log {ours['log_mb']:,.0f} MB")


def _sizes(quick: bool) -> tuple[int, int]:
    return (1_000, 10_000) if quick else (10_000, 100_000)


def _measure(program: str, *words: object) -> dict[str, Any]:
    command = [sys.executable, "-c", _MEASURED + program, *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"a measurement failed:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _filled(folder: Path, slots: int) -> Path:
    """Return a ledger with a complete run of this many slots and right digests, made once."""
    ledger = folder / f"exchange-{slots}" / "ledger.sqlite"
    if ledger.exists():
        return ledger
    say(f"exchange: filling a ledger with {slots:,} slots")
    migrations.upgrade(ledger)
    with LedgerWriter.open(ledger, ArtifactStore(ledger.parent / "artifacts")) as writer:
        schedule = map(synthetic.slot, range(slots))
        writer.create_run(synthetic.new_run(_RUN), synthetic.task_rows(slots), schedule)
        lease = writer.leases.acquire(_RUN, Owner("bench", 0, "bench"), 0.0)
    with BareWriter(ledger) as bare:
        head = bare.value("SELECT genesis_digest FROM schedule")
        for first in range(0, slots, _FILL_BATCH):
            batch = []
            for idx in range(first, min(first + _FILL_BATCH, slots)):
                found_rows, head = _linked(lease, idx, head)
                batch += found_rows
            bare.commit(batch)
    return ledger


def _linked(lease: Lease, idx: int, previous: str) -> tuple[list[Any], str]:
    """Return everything that the commit of a slot writes, and the chain's new head."""
    slot = synthetic.slot(idx)
    result = synthetic.result(_RUN, slot)
    stamp = Stamp(
        TrialIds.of(_RUN, slot), idx, result.slot_commit_id, result.attempt, result.ended_at
    )
    records = slot_rows.slot_records(
        result.status, stamp, slot_rows.slot_rows(lease.run_no, [result])
    )
    payload = digest_chain.payload_digest(records)
    link = digest_chain.chain_digest(previous, result.slot_commit_id, lease.epoch, _NOW, payload)
    published = [
        (statement, [(*values[0][:-2], payload, link)])
        if statement == statements.insert("slot_commit")
        else (statement, values)
        for statement, values in commit_rows(lease, result)
    ]
    return published, link
