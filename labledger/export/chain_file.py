"""`chain.jsonl`: what the mirrors of a run lack to be imported and verified somewhere else."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from labledger import canonical
from labledger.export.files import replacing
from labledger.ledger.reader import LedgerReader
from labledger.store import Fence

PATH = Path("chain.jsonl")
"""Its file in the run folder."""


def write_chain(
    reader: LedgerReader, run_id: str, out: Path | BinaryIO, fence: Fence = nullcontext
) -> None:
    """Write it anew from the ledger: to a stream, or to a file that appears whole."""
    if isinstance(out, Path):
        with replacing(out, fence) as handle:
            write_chain(reader, run_id, handle)
        return
    out.writelines(canonical.dump_bytes(record) + b"\n" for record in reader.chain_records(run_id))
