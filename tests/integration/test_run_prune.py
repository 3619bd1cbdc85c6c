"""A variant that only fails is given up; the others go on."""

from __future__ import annotations

from typing import Any

import pytest
from experiments import Project

from labledger.api import RunOutcome, open_ledger
from labledger.errors import Exit
from labledger.runner.stopping import StopRequest

pytestmark = pytest.mark.docker

ONLY_CAREFUL = '[ "$mode" = careful ] || exit 3; answer=wrong'
TREATED = ["agent_error", "agent_error", "skipped_pruned", "skipped_pruned", "skipped_pruned"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, image_ids: dict[str, str]) -> Project:
    tasks = dict.fromkeys("abcde", ONLY_CAREFUL)
    prune = {"max_consecutive_failures": 2}
    return Project(tmp_path_factory.mktemp("prune"), tasks, prune=prune, max_concurrency=1)


@pytest.fixture(scope="module")
def outcome(project: Project) -> RunOutcome:
    return project.start("pruned")


def statuses(project: Project, run_id: str, variant: int) -> list[str]:
    return [status for idx, status in project.rows(run_id)["slots"] if idx % 2 == variant]


def test_the_failing_variant_is_skipped(project: Project, outcome: RunOutcome) -> None:
    """After two failures in a row the rest of the variant is skipped, and the slots say why."""
    assert statuses(project, "pruned", 1) == TREATED
    with open_ledger(lab_dir=project.lab) as ledger:
        skipped = ledger.slot("pruned", 9)
    assert skipped["reason"] == "variant treat failed 2 slots in a row"
    assert skipped["trials"] == []


def test_wrong_answers_do_not_prune(project: Project, outcome: RunOutcome) -> None:
    """The baseline fails every task by verdict, which is a result, and runs to its end."""
    assert statuses(project, "pruned", 0) == ["completed"] * 5
    assert outcome.summary["variants"][0]["fail"] == 5


def test_skipped_slots_are_counted_as_such(project: Project, outcome: RunOutcome) -> None:
    """The run is complete; its summary counts what was skipped and averages none of it."""
    assert outcome.exit_code is Exit.COMPLETE
    assert outcome.summary["ext"]["statuses"]["skipped_pruned"] == 3
    assert outcome.summary["ext"]["variants"][1]["scheduled"] == 5
    project.check_whole("pruned")


def test_failures_are_counted_across_a_resume(project: Project, outcome: RunOutcome) -> None:
    """Stopped after the first failure and resumed, the run comes to the same slots."""
    stop = StopRequest()

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "slot_committed" and event["schedule_idx"] == 1:
            stop.press()

    first = project.start("stopped", tell=watch, stop=stop)
    assert first.exit_code is Exit.INTERRUPTED
    assert not first.complete
    assert project.go_on("stopped").complete
    assert project.rows("stopped") == project.rows("pruned")
    project.check_whole("stopped")
