"""Write notes and tags of runs. They say nothing about results, so no digest chain covers them.

A note is never changed. The tags of a run begin as those of its experiment; people add and remove
others. The writer and imports call these functions inside their transactions.
"""

from __future__ import annotations

from collections.abc import Iterable

from labledger.ledger.database import row_sql
from labledger.ledger.database.connection import Connection

_INSERT_NOTE = row_sql.insert("run_note")
_INSERT_TAG = row_sql.insert("run_tag", unless_exists="run_no, tag")
_DELETE_TAG = "DELETE FROM run_tag WHERE run_no = ? AND tag = ?"
_NEXT_NOTE_SQL = "SELECT coalesce(max(note_no), 0) + 1 FROM run_note WHERE run_no = ?"
_NOTES_SQL = "SELECT noted_at, note FROM run_note WHERE run_no = ? ORDER BY note_no"
_TAGS_SQL = "SELECT tag, tagged_at FROM run_tag WHERE run_no = ? ORDER BY tag"


def add_note(connection: Connection, run_no: int, note: str, now: str) -> None:
    """Append a note to a run."""
    number = connection.exec_driver_sql(_NEXT_NOTE_SQL, (run_no,)).scalar_one()
    connection.exec_driver_sql(_INSERT_NOTE, (run_no, number, now, note))


def add_tags(connection: Connection, run_no: int, tags: Iterable[str], now: str) -> None:
    """Give a run tags; one that it has is left as it is."""
    for tag in tags:
        connection.exec_driver_sql(_INSERT_TAG, (run_no, tag, now))


def remove_tags(connection: Connection, run_no: int, tags: Iterable[str]) -> None:
    """Take tags from a run; one that it does not have is ignored."""
    for tag in tags:
        connection.exec_driver_sql(_DELETE_TAG, (run_no, tag))


def copy_annotations(
    source: Connection, source_no: int, target: Connection, target_no: int
) -> None:
    """Add the notes and tags of a run of another ledger to those that the run has here."""
    known = {tuple(row) for row in target.exec_driver_sql(_NOTES_SQL, (target_no,))}
    for noted_at, note in source.exec_driver_sql(_NOTES_SQL, (source_no,)):
        if (noted_at, note) not in known:
            add_note(target, target_no, note, noted_at)
    for tag, tagged_at in source.exec_driver_sql(_TAGS_SQL, (source_no,)):
        add_tags(target, target_no, [tag], tagged_at)
