"""What `status` says of a run: while a coordinator owns it, and after it has stopped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import sample_ledgers as kit
from commands import run_forked

from labledger import RunOutcome, clock, open_ledger
from labledger.cli import run_outcome
from labledger.cli.run_progress import RunProgress
from labledger.export.summary import build_summary
from labledger.ledger.database.model import Dispatch, Lease, Spent, Stop
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import RunStatus, StopCause
from labledger.text import counted_of


@pytest.fixture
def lease(writer: LedgerWriter) -> Lease:
    """A run of which slot 0 is committed, slot 2 waits for slot 1, and slot 1 was dispatched."""
    lease = kit.begin_run(writer)
    writer.commit_result(lease, kit.result(0))
    writer.stage(lease, kit.result(2), final=True)
    writer.journal_dispatch(lease, [Dispatch(1, 1, "container", "here", kit.TIMES[0])])
    return lease


def status(path: Path) -> CompletedProcess[str]:
    return run_forked("status", kit.RUN, folder=path.parent.parent)


def test_an_owned_run_is_watched_and_not_resumed(path: Path, lease: Lease) -> None:
    """While a coordinator owns a run, `resume` would be refused, and `status --watch` works."""
    done = status(path)
    assert done.stderr == "next: labledger status run-1 --watch\n"
    counts = "1 of 4 slots committed; 1 finished result waiting for earlier slots; 1 running or "
    assert counts in done.stdout


def test_a_stopped_run_has_nothing_that_runs(
    path: Path, writer: LedgerWriter, lease: Lease
) -> None:
    """After a stop, `status` offers `resume`, and says of which slots a result is missing."""
    writer.leases.release(lease, RunStatus.INTERRUPTED, Stop(StopCause.INTERRUPT, "Ctrl-C"))
    done = status(path)
    assert done.stderr == "next: labledger resume run-1\n"
    assert "1 slot dispatched without a result, which resuming completes" in done.stdout
    assert "running" not in done.stdout.partition("variant")[0].replace("run run-1", "")


def test_watching_counts_from_when_the_run_was_acquired(path: Path) -> None:
    """`status --watch` shows how long the coordinator has had the run, not how long it watches."""
    before = clock.iso(datetime.now(UTC) - timedelta(minutes=5))
    with kit.open_writer(path, clock=lambda: before) as writer:  # type: ignore[arg-type]
        resolved = {"benchmark": kit.BENCHMARK, "design": {"max_concurrency": 2}}
        writer.create_run(kit.new_run(resolved=resolved), kit.tasks(2), kit.slots(4))
        writer.leases.acquire(kit.RUN, kit.OWNER, 3600.0)
    progress = RunProgress()
    with open_ledger(path) as ledger:
        for _ in range(2):
            progress.show(ledger.state(kit.RUN))
    assert 300 <= progress.elapsed_s < 3600
    assert " elapsed" in progress.line()
    assert progress.line().partition(" elapsed")[0].split()[-1].startswith("5:")


def test_the_outcome_shows_what_waiting_results_spent(
    path: Path, reader: LedgerReader, lease: Lease, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a run spent is of all of its trials, also of results that are not committed."""
    spent = reader.spent_so_far(kit.RUN)
    assert spent["tokens"] == Spent(22, 2, 0)
    summary = build_summary(reader, kit.RUN)
    run_outcome.print_outcome(
        RunOutcome(kit.RUN, path.parent, complete=False, summary=summary, spent=spent)
    )
    assert "22 tokens spent\n" in capsys.readouterr().out


def test_attempts_that_are_retried_have_spent(
    writer: LedgerWriter, reader: LedgerReader, lease: Lease
) -> None:
    """What an attempt spent counts, also where its slot gets another one."""
    writer.stage(lease, kit.result(1), final=False)
    assert reader.spent_so_far(kit.RUN)["tokens"] == Spent(33, 3, 0)


def test_one_of_one_is_singular() -> None:
    """A number and its noun agree."""
    assert counted_of(0, 1, "slot") == "0 of 1 slot"
    assert counted_of(1_000, 12_000, "slot") == "1,000 of 12,000 slots"
