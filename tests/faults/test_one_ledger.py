"""Several runs and a reader that stays, all on one ledger."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from experiments import PASSING, RIGHT, WRONG, EngineLog, Project

from labledger.ledger.database.sqlite import DRIVER, log_size

pytestmark = pytest.mark.docker

RUNS = ("one", "two", "three")
SLOTS = 20


def test_runs_and_a_reader_do_not_hold_each_other_up(
    tmp_path: Path, image_ids: dict[str, str], engine_log: EngineLog
) -> None:
    """Three runs complete while a reader keeps its transaction open; it sees what it saw at first.
    When it has gone, the next run leaves no write-ahead log."""
    tasks = {f"t{n}": (RIGHT, WRONG)[n % 2] for n in range(SLOTS // 2)}
    project = Project(tmp_path, tasks, max_concurrency=2)
    project.start("before", limit=1)
    ledger = project.lab / "ledger.sqlite"
    counted = "SELECT count(*) FROM slot_commit"
    with closing(DRIVER.connect(f"file:{ledger}?mode=ro", uri=True, isolation_level=None)) as raw:
        raw.execute("BEGIN")
        seen = raw.execute(counted).fetchone()
        with ExitStack() as stack:
            running = [stack.enter_context(closing(project.run(r, *PASSING))) for r in RUNS]
            for coordinator in running:
                assert coordinator.finish() == 0, coordinator.stderr
                assert "locked" not in coordinator.stderr
        assert raw.execute(counted).fetchone() == seen
        assert log_size(ledger) > 0, "the reader held nothing back"
        raw.execute("COMMIT")
        assert raw.execute(counted).fetchone() == (seen[0] + len(RUNS) * SLOTS,)
        project.start("after", limit=1)
        assert log_size(ledger) == 0
    for run_id in RUNS:
        assert engine_log.starts(project, run_id) == {(idx, 1): 1 for idx in range(SLOTS)}
        project.check_whole(run_id)
