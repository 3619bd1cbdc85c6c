"""Cancelled and paused slots in the coordinator, with trials that end when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sample_ledgers as kit
from test_coordinator import CAPACITY, SLOTS, WIDTH, Run

from labledger.ledger.control_requests import Controls
from labledger.ledger.reader import LedgerReader
from labledger.ledger.verify import verify
from labledger.ledger.writer import LedgerWriter
from labledger.records.outcomes import Reason, RequestKind, SlotStatus

ANN = "ann@box"


@pytest.fixture
def run(writer: LedgerWriter, reader: LedgerReader, path: Path) -> Iterator[Run]:
    made = Run(writer, reader, path.parent, WIDTH)
    yield made
    made.mirrors.close()


def statuses(reader: LedgerReader) -> list[tuple[str, str | None]]:
    """Status and reason of each committed slot, in their order."""
    records = reader.slot_records(kit.RUN)
    return [(each.status.value, each.reason) for each in records]


def test_a_run_of_which_all_is_cancelled_ends(
    run: Run, writer: LedgerWriter, reader: LedgerReader
) -> None:
    """Slots that nothing ran of are committed as cancelled, although no trial is waited for."""
    writer.add_request(kit.RUN, RequestKind.CANCEL, {"variant": ["base", "treat"]}, ANN)
    assert run.coordinator.execute()
    assert statuses(reader) == [("cancelled", f"cancelled by {ANN} (request 1)")] * SLOTS
    assert run.trials.submitted == []
    assert verify(writer.path).findings == ()


def test_a_killed_trial_has_not_passed(
    run: Run, writer: LedgerWriter, reader: LedgerReader
) -> None:
    """What ran is committed with its costs; what had ended before the kill stays as it ended."""
    asked: list[Any] = []

    def ask_and_end() -> None:
        if not asked:
            asked.append(writer.add_request(kit.RUN, RequestKind.CANCEL, {"slot": [0, 1]}, ANN))
        elif run.trials.killed == {(0, 1), (1, 1)}:
            if 0 in run.trials.going:
                killed = {"status": SlotStatus.INFRA_ERROR, "reason": Reason.CONTAINER_KILLED}
                run.trials.end(0, scores=(), predictions=(), **killed)
            run.trials.end_all()

    run.when_idle = ask_and_end
    assert run.coordinator.execute()
    assert statuses(reader)[:3] == [
        ("agent_error", "cancelled"),
        ("completed", None),
        ("completed", None),
    ]
    assert verify(writer.path).findings == ()


def test_what_is_paused_is_passed_over_and_taken_up_again(
    run: Run, writer: LedgerWriter, reader: LedgerReader
) -> None:
    """Slots of other variants go on, nothing of the paused one starts, and then all of it does."""
    writer.add_request(kit.RUN, RequestKind.PAUSE, {"variant": ["treat"]}, ANN)
    seen: list[list[int]] = []

    def end_or_go_on() -> None:
        if run.trials.going:
            run.trials.end_all()
        elif not seen:
            seen.append(run.dispatched())
            writer.add_request(kit.RUN, RequestKind.UNPAUSE, {"variant": ["treat"]}, ANN)

    run.when_idle = end_or_go_on
    assert run.coordinator.execute()
    assert seen == [[idx for idx in range(SLOTS) if idx % 2 == 0]]
    assert sorted(run.dispatched()) == list(range(SLOTS))
    assert Controls.of(reader.control_requests(kit.RUN)).pauses == {}


def test_the_lowest_slots_go_first_after_pauses_that_overlap(
    run: Run, writer: LedgerWriter, reader: LedgerReader
) -> None:
    """What was held back longest is not passed by later slots, which would wait to be committed."""
    asked: list[str] = []
    pauses = {
        "first": (RequestKind.PAUSE, {"variant": ["base"]}),
        "second": (RequestKind.UNPAUSE, {"variant": ["base"]}),
        "third": (RequestKind.PAUSE, {"variant": ["base"]}),
        "last": (RequestKind.UNPAUSE, {"all": True}),
    }
    writer.add_request(kit.RUN, RequestKind.PAUSE, {"variant": ["treat"]}, ANN)
    before: list[int] = []

    def ask_or_end() -> None:
        if reader.unchanged_requests(kit.RUN, waiting=True):
            return
        if len(asked) < len(pauses):
            name = list(pauses)[len(asked)]
            asked.append(name)
            if name == "last":
                before.extend(run.dispatched())
            writer.add_request(kit.RUN, *pauses[name], ANN)
        else:
            run.trials.end_all()

    run.when_idle = ask_or_end
    assert run.coordinator.execute()
    after = run.dispatched()[len(before) :]
    assert after == sorted(after)
    assert sorted(run.dispatched()) == list(range(SLOTS))


def test_fewer_at_once_from_the_next_dispatch_on(
    run: Run, writer: LedgerWriter, reader: LedgerReader
) -> None:
    """A smaller number ends nothing that runs, and is kept to from then on."""
    writer.add_request(kit.RUN, RequestKind.SET, {"max_concurrency": 1}, ANN)
    most: list[int] = []

    def end_all() -> None:
        most.append(len(run.trials.going))
        run.trials.end_all()

    run.when_idle = end_all
    assert run.coordinator.execute()
    assert max(most[1:]) <= 2 < CAPACITY, "one that runs, and one that is prepared"
