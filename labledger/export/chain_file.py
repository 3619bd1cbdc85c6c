"""`chain.jsonl`: what mirrors need in addition to be imported and verified elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from labledger.ledger.reader import LedgerReader
from labledger.records import canonical_json
from labledger.storage.artifact_store import Fence
from labledger.storage.line_files import Difference, first_difference, replacing

PATH = Path("chain.jsonl")
"""Its file in the run folder."""


def write_chain(
    reader: LedgerReader, run_id: str, out: Path | BinaryIO, fence: Fence = nullcontext
) -> None:
    """Regenerate it from the ledger, into a stream or, atomically, into a file."""
    if isinstance(out, Path):
        with replacing(out, fence) as handle:
            write_chain(reader, run_id, handle)
        return
    out.writelines(line for _, line in _lines(reader, run_id))


def compare_chain(reader: LedgerReader, run_id: str, run_dir: Path) -> Difference | None:
    """Return its first difference from the ledger, or None. Older runs may have no such file."""
    path = run_dir / PATH
    return first_difference(path, _lines(reader, run_id)) if path.exists() else None


def _lines(reader: LedgerReader, run_id: str) -> Iterator[tuple[str, bytes]]:
    """Yield its lines, each with a label for messages."""
    for record in reader.chain_records(run_id):
        yield f"its {record['type']} record", canonical_json.dump_bytes(record) + b"\n"
