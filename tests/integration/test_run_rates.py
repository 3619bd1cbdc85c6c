"""What runs say of agents that crash, and of variants of which nothing was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import BY_MODE, PASSING, UNGRADABLE, Project

from labledger.api import open_ledger

pytestmark = pytest.mark.docker


@pytest.fixture
def project(tmp_path: Path, image_ids: dict[str, str]) -> Project:
    return Project(tmp_path, {"a": BY_MODE, "b": BY_MODE})


def test_crashing_does_not_make_an_agent_look_better(project: Project) -> None:
    """Its grader fails for want of what it left: the slot is a grade_error, and not passed."""
    project.tasks({"a": BY_MODE, "crash": "echo ungradable >answer; exit 3"})
    done = project.command("run", project.experiment, *PASSING, "--run-id", "crashed")
    assert done.returncode == 0, done.stderr
    with open_ledger(lab_dir=project.lab) as ledger:
        trials = ledger.query("SELECT task_id, status, passed FROM trials ORDER BY schedule_idx")
        board = ledger.query("SELECT variant_id, passed, not_passed, pass_rate FROM leaderboard")
        summary = ledger.summary("crashed")
    crashed = [trial for trial in trials if trial["task_id"] == "crash"]
    assert [(trial["status"], trial["passed"]) for trial in crashed] == [("grade_error", 0)] * 2
    assert board[0] == {"variant_id": "base", "passed": 1, "not_passed": 1, "pass_rate": 0.5}
    assert [v["pass_rate"] for v in summary["ext"]["variants"]] == [0.5, 0.0]
    assert "50.0%" in done.stdout
    assert "100.0%" not in done.stdout
    assert "not passed, without a verdict, because the agent failed: 2" in done.stdout


def test_a_variant_without_a_score_is_no_success(project: Project) -> None:
    """All is committed, and nothing was measured: exit code 3, and a sentence that says so."""
    project.tasks({"a": UNGRADABLE})
    quiet = ("--run-id", "blind", "--quiet")
    done = project.command("run", project.experiment, *PASSING, *quiet)
    assert done.returncode == 3
    assert "variant base has no score: nothing was measured of it" in done.stderr
    again = project.command("resume", "blind", *PASSING)
    assert again.returncode == 3
    assert "variant treat has no score" in again.stderr
