"""A run that goes on while its lab is backed up, and the restored lab beside it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from containers import docker
from experiments import HOLDING, HOLDS, PASSING, RIGHT, EngineLog, Project
from killed_coordinators import RUN, make
from waiting import wait_until

from labledger.trial.contract import Labels

pytestmark = pytest.mark.docker


def started_by(lab: Path, project: Project, engine_log: EngineLog) -> dict[tuple[int, int], int]:
    """The containers that were started for a lab, by slot and attempt."""
    project.lab = lab
    return dict(engine_log.starts(project, RUN))


def test_a_run_goes_on_while_its_lab_is_backed_up_and_restored(
    tmp_path: Path, image_ids: dict[str, str], engine_log: EngineLog
) -> None:
    """Both labs complete the run. The copy repeats no finished slot, starts no agent that had
    begun, and takes no container of the original. Slots that both committed are the same."""
    project = make(tmp_path, RIGHT, HOLDS, HOLDS, RIGHT)
    original, copy = project.lab, tmp_path / "elsewhere" / ".lab"
    backup = tmp_path / "lab.tar.gz"
    with closing(project.run(RUN, *HOLDING)) as coordinator:
        coordinator.until("slot_committed")
        wait_until(lambda: {(1, 1), (2, 1)} <= project.running(RUN).keys(), "two agents to hold")
        held = project.running(RUN)
        project.output("backup", backup)
        restored = project.json("restore", backup, copy, "--json")
        [run] = restored["runs"]
        assert (run["committed"], run["left_in_original"]) == (1, [1, 2])

        assert project.command("verify", "--lab-dir", copy).returncode == 0
        resumed = project.command("resume", RUN, "--lab-dir", copy, *PASSING)
        assert "was restored from a backup" in resumed.stderr
        assert project.running(RUN) == held
        assert project.command("clean", "--lab-dir", copy, "--unfinished").returncode == 0
        assert project.running(RUN) == held
        for idx in (1, 2):
            project.open_gate(RUN, idx)
        assert coordinator.finish() == 0, coordinator.stderr
    for lab in (original, copy):
        assert project.command("verify", "--lab-dir", lab).returncode == 0
    assert started_by(original, project, engine_log) == {(idx, 1): 1 for idx in range(4)}
    assert started_by(copy, project, engine_log) == {(3, 1): 1}

    mirror = Path("runs", RUN, "benchmark", "scores.jsonl")
    first = [(lab / mirror).read_text().splitlines()[0] for lab in (original, copy)]
    assert first[0] == first[1]
    project.lab = copy
    left = "infra_error"
    assert [status for _, status in project.rows(RUN)["slots"]] == [
        *("completed", left, left, "completed")
    ]
    names = docker("ps", "--all", "--format", "{{.Names}}", "--filter", f"label={Labels.RUN}={RUN}")
    assert names == ""
