"""Creation of a run folder, with the experiment as it was written and as it was resolved.

Both files are copies: the ledger holds the originals. Used by the session.
"""

from __future__ import annotations

import json
from pathlib import Path

from labledger.ledger.database.model import RunInfo
from labledger.records import JsonObject
from labledger.storage.artifact_store import write_atomically


def create_run_folder(folder: Path, run: RunInfo) -> None:
    """Create the folder of a run, closed to other users, and the files that it lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    copies = {"experiment.yaml": run.authored.encode(), "resolved.json": _pretty(run.resolved)}
    for name, content in copies.items():
        if not (folder / name).exists():
            write_atomically(folder / name, content)


def _pretty(document: JsonObject) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
