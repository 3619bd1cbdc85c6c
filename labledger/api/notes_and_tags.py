"""Write notes and tags of runs. They say nothing about results, and the ledger keeps them beside.

Each function takes the lab folder as `lab_dir`; None means `LABLEDGER_DIR` or the nearest `.lab`
folder upwards. A run may be in progress meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from labledger.errors import InvalidInput, Problem
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.lab_folder import LabFolder
from labledger.text.phrases import quoted

_TAG = re.compile(r"[^\s,+-][^\s,]{0,63}")
_MAX_NOTE = 10_000


def add_note(run_id: str, note: str, *, lab_dir: str | Path | None = None) -> None:
    """Write a note on a run. Notes are never changed or removed.

    Args:
        run_id: The run.
        note: The text, of at most 10,000 characters.
        lab_dir: The lab folder.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: The note is empty or too long.

    Example:
        >>> import labledger
        >>> labledger.add_note("demo", "The proxy was slow that day.")
    """
    from labledger.ledger.writer import LedgerWriter

    if not note.strip() or len(note) > _MAX_NOTE:
        message = f"found {len(note):,} characters; expected a text of at most {_MAX_NOTE:,}"
        raise InvalidInput("the note", [Problem("TEXT", message)])
    lab = LabFolder.find(lab_dir)
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        writer.add_note(run_id, note)


def change_tags(
    run_id: str,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    *,
    lab_dir: str | Path | None = None,
) -> tuple[str, ...]:
    """Add tags to a run and remove others.

    Args:
        run_id: The run.
        add: Tags to add, each of at most 64 characters without spaces and commas.
        remove: Tags to remove; one that the run does not have is ignored.
        lab_dir: The lab folder.

    Returns:
        All tags that the run has then, sorted.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: A tag is not valid, or is both added and removed.

    Example:
        >>> import labledger
        >>> labledger.change_tags("demo", add=["paper"], remove=["draft"])
        ('paper',)
    """
    from labledger.ledger.reader import LedgerReader
    from labledger.ledger.writer import LedgerWriter

    added, removed = tuple(add), tuple(remove)
    problems = [
        Problem("tag", f"found {quoted(tag)}; expected 1 to 64 characters, no spaces and commas")
        for tag in added
        if not _TAG.fullmatch(tag)
    ]
    both = sorted(set(added) & set(removed))
    problems += [Problem("tag", f"{tag!r} is both added and removed") for tag in both]
    if problems:
        raise InvalidInput("the tags", problems)
    lab = LabFolder.find(lab_dir)
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        writer.change_tags(run_id, added, removed)
    with LedgerReader.open(lab.ledger) as reader:
        return reader.run(run_id).tags
