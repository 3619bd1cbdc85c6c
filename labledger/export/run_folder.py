"""Files of a run folder beside mirrors and summary: the experiment, and `chain.jsonl`.

All are copies: the ledger holds the originals. Used by the session, `export`, `import` and
`verify`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from labledger.ledger.database.model import RunInfo
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject, canonical_json
from labledger.storage.durable_files import Fence, replace_output, write_file
from labledger.storage.file_comparison import Difference, first_difference

CHAIN_PATH = Path("chain.jsonl")
"""The file with the run's creation and digests, which an import of mirrors needs as well."""


def create_run_folder(folder: Path, run: RunInfo) -> None:
    """Create the folder of a run, closed to other users, and the copies that it does not have.

    The copies of an experiment that was extended are replaced by those of its newest revision.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    copies = {
        "experiment.yaml": run.authored.encode(),
        "resolved.json": _indented_json(run.resolved),
    }
    for name, content in copies.items():
        if run.parts or not (folder / name).exists():
            write_file(folder / name, content)


def _indented_json(document: JsonObject) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def write_chain(
    reader: LedgerReader, run_id: str, out: Path | BinaryIO, fence: Fence = nullcontext
) -> None:
    """Regenerate `chain.jsonl` from the ledger, into a stream or, atomically, into a file."""
    if isinstance(out, Path):
        with replace_output(out, fence) as handle:
            write_chain(reader, run_id, handle)
        return
    out.writelines(line for _, line in _chain_lines(reader, run_id))


def compare_chain(reader: LedgerReader, run_id: str, run_dir: Path) -> Difference | None:
    """Return where the file first differs from the ledger, or None. Older runs may have none."""
    path = run_dir / CHAIN_PATH
    return first_difference(path, _chain_lines(reader, run_id)) if path.exists() else None


def _chain_lines(reader: LedgerReader, run_id: str) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of the file, each with its origin for messages."""
    for record in reader.chain_records(run_id):
        yield f"its {record['type']} record", canonical_json.dump_bytes(record) + b"\n"
