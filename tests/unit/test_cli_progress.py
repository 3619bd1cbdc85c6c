"""The progress of a run, computed from its events, and the lines that display it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from typing import Any

import pytest
from rich.console import Console

from labledger.cli import run_display
from labledger.cli.event_lines import notable_line, started_line
from labledger.cli.run_progress import RunProgress
from labledger.execution.run_events import run_event
from labledger.ledger.database.run_info import Spent, VariantCounts
from labledger.records.pass_rate import PassCounts, has_passed
from labledger.text.figures import clock_time, percent

STARTED = run_event(
    "run_started",
    run_id="run-1",
    folder="/lab/runs/run-1",
    total=10,
    committed=2,
    staged=0,
    begun=0,
    max_concurrency=4,
    budget={},
    spent={},
    variants=["base", "treat"],
    counts=[
        VariantCounts("base", 5, 1, {"completed": 1}, {"pass": 1}, PassCounts(1, 0)).as_json(),
        VariantCounts("treat", 5, 1, {"grade_error": 1}).as_json(),
    ],
)


def committed(idx: int, status: str, verdict: str | None, **fields: int) -> dict[str, Any]:
    variant = ("base", "treat")[idx % 2]
    numbers = {"waiting": 0, "passed": has_passed(status, verdict, None), **fields}
    rest = {"variant_id": variant, "status": status, "verdict": verdict, **numbers}
    return run_event("slot_committed", schedule_idx=idx, **rest)


def finished(status: str = "completed", **fields: object) -> dict[str, Any]:
    known = {"schedule_idx": 3, "variant_id": "treat", "task_id": "a", "reason": None}
    return run_event("trial_finished", status=status, **{**known, "will_retry": False, **fields})


def tick(running: int, *, waiting: int, prepared: int = 0, **fields: object) -> dict[str, Any]:
    dispatched = running + prepared
    numbers = {"dispatched": dispatched, "waiting": waiting, "max_concurrency": 4, **fields}
    return run_event("tick", running=running, **numbers)


def view_of(*events: dict[str, Any]) -> RunProgress:
    view = RunProgress()
    for event in events:
        view.add(event)
    return view


def test_a_resumed_run_counts_from_where_it_stood() -> None:
    """Trials committed earlier count as committed, but not in this coordinator's pace."""
    view = view_of(STARTED)
    assert (view.committed, view.total, view.remaining_s) == (2, 10, None)
    view.add(committed(2, "completed", "pass"))
    assert view.committed == 3


def test_the_time_left_is_shown_when_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left is shown once as many trials have ended as run at once, and not before."""
    view = view_of(STARTED)
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 40)
    for idx in range(2, 6):
        assert view.remaining_s is None
        assert "left" not in view.line()
        view.add(finished())
        view.add(committed(idx, "completed", "pass"))
    working, idle = (tick(number, waiting=0) for number in (2, 0))
    view.add(working)
    assert view.remaining_s == pytest.approx(40, rel=0.01)
    assert "40s elapsed · about 40s left" in view.line()
    few = view_of({**STARTED, "max_concurrency": 1}, finished(), finished())
    assert few.remaining_s is None
    few.add(finished())
    few.add(tick(1, prepared=1, waiting=0, max_concurrency=1))
    assert few.remaining_s is not None
    few.add(idle)  # Such as when the remaining slots are paused.
    assert few.remaining_s is None


@pytest.mark.parametrize(
    "event",
    [
        tick(2, waiting=0, held=True),
        run_event("budget_spent", message="0.5 of 0.4 USD are spent"),
        run_event("stopping", level=1),
    ],
    ids=lambda event: event["event"],
)
def test_no_time_is_left_where_something_must_happen_first(event: dict[str, Any]) -> None:
    """No remaining time is shown while a pause, a spent budget or a stop comes first."""
    view = view_of(STARTED, *(finished() for _ in range(4)), tick(2, waiting=0))
    assert view.remaining_s is not None
    view.add(event)
    assert view.remaining_s is None


def test_a_changed_budget_is_shown() -> None:
    """The line shows a limit that a request set, and ignores a refused request."""
    view = view_of({**STARTED, "budget": {"cost_usd": 5.0}})
    asked = {"requested_by": "ann@box", "because": None, "text": "set", "asked": "set"}
    for what, expected in (
        ({"budget": {"cost_usd": 4.5}}, {"cost_usd": 4.5}),
        ({"budget": {"cost_usd": None, "tokens": 9}}, {"tokens": 9}),
    ):
        view.add(run_event("control_applied", what=what, **asked))
        assert view.budget == expected
    what = {"budget": {"tokens": 1}}
    view.add(run_event("control_applied", what=what, refused=True, **asked))
    assert view.budget == {"tokens": 9}


def test_a_resumed_run_has_the_rates_of_all_that_is_committed() -> None:
    """After a resume, the display has the rates of all committed trials."""
    view = view_of(STARTED)
    assert (view.rate("base"), view.rate("treat")) == ("100.0%", "–")
    assert view.all_statuses() == {"completed": 1, "grade_error": 1}
    view.add(committed(2, "completed", "fail"))
    assert view.rate("base") == "50.0%"
    assert view.verdicts["base"] == {"pass": 1, "fail": 1}


def test_the_pass_rate_counts_agents_that_failed() -> None:
    """An agent that failed has not passed; failures of the lab are in no rate."""
    view = view_of(
        STARTED,
        committed(2, "agent_error", None),
        committed(4, "infra_error", None),
    )
    assert view.rate("base") == "50.0%"


def test_the_pass_rate_is_of_what_was_scored() -> None:
    """Slots without a verdict are in no rate, and a variant without verdicts shows none."""
    view = view_of(
        {**STARTED, "counts": []},
        committed(2, "completed", "pass"),
        committed(4, "completed", "fail"),
        committed(6, "grade_error", None),
    )
    assert view.rate("base") == "50.0%"
    assert view.rate("treat") == "–"
    assert "1 grade error · 0 infra errors" in view.line()


def test_prepared_trials_do_not_run() -> None:
    """Trials that are only being prepared are not shown as running, at any concurrency."""
    view = view_of(STARTED, tick(4, prepared=4, waiting=3))
    assert (view.running, view.waiting) == (4, 3)
    view.add(tick(1, prepared=1, waiting=3))
    assert view.running == 1, "of two with room for four, one is prepared"
    assert " · 1 running · " in view.line()
    view.add(finished())
    view.add(finished())
    view.add(committed(2, "completed", "pass", waiting=2))
    assert (view.running, view.waiting) == (0, 2)


def test_the_line_says_where_the_run_stands() -> None:
    """One line holds everything that the live display shows."""
    view = view_of(STARTED, tick(3, waiting=1))
    line = view.line()
    assert line.startswith(
        "2 of 10 trials saved · 3 running · 1 waiting to be saved · base 100.0% · treat –"
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_live_display_shows_where_the_run_stands(width: int) -> None:
    """Every phrase of the plain line appears whole, at any width of the terminal."""
    shown = io.StringIO()
    watcher = run_display.LiveWatcher()
    for event in (
        STARTED,
        committed(2, "completed", "fail"),
        tick(3, waiting=1),
    ):
        watcher(event)
    Console(file=shown, width=width).print(watcher.draw())
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for phrase in ("3 of 10 trials saved", "3 running", "1 waiting to be saved", "0s elapsed"):
        assert any(phrase in line for line in lines), phrase
    if width >= 80:
        assert any(re.match(r"base +50\.0% +1 +1 +0 +0 +0 +0", line) for line in lines)


def test_the_line_says_what_is_still_cleaned_up() -> None:
    """Removals of folders are reported if more wait than trials run, and at the end of a run."""
    view = view_of(STARTED, tick(3, waiting=0, removing=4))
    assert "cleaning up" not in view.line()
    view.add(tick(3, waiting=0, removing=5))
    assert "cleaning up 5 trial folders" in view.line()
    view.add(tick(0, waiting=0, removing=1))
    assert "cleaning up 1 trial folder" in view.line()


def test_the_line_says_what_the_run_spent_of_its_budget() -> None:
    """Earlier coordinators' spending counts; a trial that never started adds nothing."""
    spent = {
        "cost_usd": {"total": 2.5, "known": 5, "unknown": 0},
        "tokens": {"total": 0, "known": 0, "unknown": 5},
    }
    view = view_of({**STARTED, "budget": {"cost_usd": 20, "tokens": 1e6}, "spent": spent})
    assert view.line().endswith(
        "2.5 of 20 USD spent · 0 of 1,000,000 tokens spent (unknown of 5 trials)"
    )
    view.add(finished(cost_usd=0.25, tokens=None))
    view.add(finished("infra_error", reason="container_failed"))
    assert view.spent == {"cost_usd": Spent(2.75, 6, 0), "tokens": Spent(0, 0, 6)}


def test_what_was_spent_is_told_without_a_budget_too() -> None:
    """Without a limit and without known spending, the line has no amount."""
    view = view_of(STARTED, finished(cost_usd=0.25, tokens=None))
    assert view.line().endswith(" · 0.25 USD spent")


def test_failures_are_told_as_they_happen(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal, each trial that did not complete prints a line on stderr."""
    watcher = run_display.PlainWatcher()
    watcher(STARTED)
    watcher(finished("infra_error", reason="container_killed", will_retry=True))
    watcher(finished())
    watcher(run_event("warning", message="careful"))
    watcher(run_event("stopping", level=1))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "trial 3 (treat, a): infra_error: container_killed, running it again" in printed.err
    assert "warning: careful" in printed.err
    assert "Ctrl-C again ends them now" in printed.err
    assert printed.err.count("trial 3") == 1


def test_a_warning_names_options_as_they_are_typed() -> None:
    """A hint names parameters in the library and options in the command."""
    event = run_event("warning", message="run 2 at once (`max_concurrency=`)")
    assert notable_line(event) == "warning: run 2 at once (--max-concurrency)"


def test_a_resume_says_what_it_found() -> None:
    """A resume prints what earlier coordinators had finished."""
    line = started_line({**STARTED, "staged": 1, "begun": 3})
    assert "after 2 saved, with 1 finished and 3 trials started" in line
    assert "continues" not in started_line({**STARTED, "committed": 0})


def test_the_hosts_of_a_cluster_are_shown_with_their_trials() -> None:
    """Few hosts are all shown; of many, only hosts without trials. Failures name their host."""

    def host(name: str, trials: int, problem: str | None = None) -> dict[str, Any]:
        return {"host": name, "trials": trials, "slots": 8, "problem": problem}

    few = [host("a/1", 8), host("b/2", 3, "it does not answer"), host("c/3", 0, "its disk is full")]
    view = view_of(STARTED, tick(11, waiting=0, hosts=few))
    view.add(tick(11, waiting=0))
    shown = view.line()
    assert "a/1: 8 trials, at most 8 at once" in shown
    assert "b/2: it does not answer (3 trials there) · c/3: its disk is full" in shown
    console = Console(file=io.StringIO(), width=100)
    watcher = run_display.LiveWatcher()
    for event in (STARTED, tick(11, waiting=0, hosts=few)):
        watcher(event)
    console.print(watcher.draw())
    assert "b/2: it does not answer" in console.file.getvalue()  # type: ignore[attr-defined]
    many = [*few[1:], *(host(f"n/{number}", 1) for number in range(1000))]
    view.add(tick(11, waiting=0, hosts=many))
    assert "1,000 of 1,002 hosts take trials · b/2: it does not answer" in view.line()
    assert "n/1" not in view.line()
    line = notable_line(finished("agent_error", reason="exit_status", host="a/1"))
    assert line == "trial 3 (treat, a) on a/1: agent_error: exit_status"


def test_json_is_one_event_a_line_without_ticks(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads JSON gets one whole line for each event, and no ticks."""
    watcher = run_display.JsonWatcher()
    for event in (STARTED, tick(1, waiting=0), finished(task_id="ä\n")):
        watcher(event)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["run_started", "trial_finished"]
    assert all(json.loads(line)["version"] == 1 for line in lines)


def test_quiet_says_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """--quiet prints warnings and nothing else."""
    watcher = run_display.QuietWatcher()
    for event in (STARTED, finished("infra_error"), run_event("warning", message="careful")):
        watcher(event)
    assert capsys.readouterr() == ("", "warning: careful\n")


@pytest.mark.parametrize("watcher", [run_display.JsonWatcher, run_display.PlainWatcher])
def test_a_reader_that_went_away_does_not_end_the_run(
    watcher: type[run_display.JsonWatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run continues when the reader of its events is gone."""
    for name in ("stdout", "stderr"):
        reading, writing = os.pipe()
        os.close(reading)
        monkeypatch.setattr(sys, name, io.TextIOWrapper(os.fdopen(writing, "wb"), "utf-8"))
    watching = watcher()
    for event in (STARTED, finished("infra_error"), committed(2, "completed", "pass")):
        watching(event)
    sys.stdout.close()
    sys.stderr.close()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (187, "3:07"), (7800, "2:10:00")]
)
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    """Durations are seconds, minutes and hours, without a unit where colons make it clear."""
    assert clock_time(seconds) == text


def test_no_rate_is_no_zero() -> None:
    """A variant without verdicts has no pass rate; a variant that never passed has 0."""
    assert (percent(None), percent(0.0), percent(0.8333)) == ("–", "0.0%", "83.3%")


def test_waiting_for_a_run_and_being_waited_for_are_said() -> None:
    """The display says who has or wants the run, and since when, until the run continues."""
    who = {"run_id": "run-1", "host": "there", "pid": 99, "since": "T0", "expires_at": "T1"}
    waiting = run_event("waiting_for_lease", **who, seconds=24.6)
    wanted = run_event("run_wanted", **who)
    for event, facts in ((waiting, ("T0", "25s")), (wanted, ("T0", "T1"))):
        line = notable_line(event)
        assert line is not None
        assert all(fact in line for fact in ("process 99 on there", *facts))
        assert view_of(event).note == line
    assert view_of(waiting, STARTED).note == ""


def test_quiet_warns_who_wants_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With --quiet, a process that wants to take over the run still causes a warning."""
    run_display.QuietWatcher()(
        run_event("run_wanted", host="h", pid=9, since="T0", expires_at="T1")
    )
    assert "process 9 on h requested this run" in capsys.readouterr().err
