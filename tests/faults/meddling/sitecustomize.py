"""Changes that a test makes to a coordinator whose PYTHONPATH contains this folder.

`MEDDLE_CLOCK` names a file with the error of the clock in seconds. `MEDDLE_JOURNAL` names a file
for every sync and every commit, one JSON list a line. `MEDDLE_COPIES` names a folder for copies of
the ledger's files, one at each fault point of the main thread.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

CLOCK = os.environ.get("MEDDLE_CLOCK")
JOURNAL = os.environ.get("MEDDLE_JOURNAL")
COPIES = os.environ.get("MEDDLE_COPIES")


def wrong_by() -> float:
    assert CLOCK is not None
    return float(Path(CLOCK).read_text("ascii"))


def write_down(name: str, about: Callable[..., list[object]]) -> None:
    """Make a function of `os` write a line to the journal after each call."""
    original = getattr(os, name)

    def followed(*args: Any, **settings: Any) -> Any:
        result = original(*args, **settings)
        journal(name, *about(*args))
        return result

    setattr(os, name, followed)


def journal(*fields: object) -> None:
    assert JOURNAL is not None
    with Path(JOURNAL).open("a") as log:
        log.write(json.dumps(fields) + "\n")


def synced(descriptor: int) -> list[object]:
    return [str(Path(f"/proc/self/fd/{descriptor}").readlink()), os.fstat(descriptor).st_ino]


def renamed(_source: Any, target: Any) -> list[object]:
    return [os.path.abspath(target), os.stat(target).st_ino]  # noqa: PTH100, PTH116


def watch_commits() -> None:
    """Write down before each COMMIT which artifacts the ledger says are in files."""
    from labledger.ledger.database.connection import Connection

    commit = Connection.commit

    def watched_commit(connection: Connection) -> None:
        names = set(connection.execute("SELECT name FROM sqlite_schema").scalars())
        if "artifact" in names:
            artifacts = connection.execute(
                "SELECT lower(hex(sha256)) FROM artifact WHERE content IS NULL"
            )
            journal("commit", list(artifacts.scalars()))
        commit(connection)

    Connection.commit = watched_commit  # type: ignore[method-assign]


def copy_at_points(folder: Path) -> None:
    from labledger import fault_points

    numbers = count()

    def fault_point(point: str, schedule_idx: int | None = None) -> None:
        if threading.current_thread() is threading.main_thread() and point != "inside_upgrade":
            target = folder / f"{next(numbers):03d}-{point}-{schedule_idx}"
            target.mkdir(parents=True)
            for name in ("ledger.sqlite", "ledger.sqlite-wal"):
                shutil.copyfile(Path(".lab") / name, target / name)

    fault_points.fault_point = fault_point


if CLOCK is not None:
    from labledger import clock

    right_time = clock.unix_time
    clock.unix_time = time.time = lambda: right_time() + wrong_by()
if JOURNAL is not None:
    write_down("fsync", synced)
    write_down("replace", renamed)
    write_down("rename", renamed)
    write_down("mkdir", lambda path, *_: [os.path.abspath(path)])  # noqa: PTH100
    watch_commits()
if COPIES is not None:
    copy_at_points(Path(COPIES))
