"""`kill -9` at every named point: resumed, the run is as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from experiments import BY_MODE, HOLDING, HOLDS, PASSING, UNGRADABLE, EngineLog, Project

from labledger.faults import POINTS, VARIABLE

pytestmark = pytest.mark.docker

TASKS = {"a": HOLDS, "b": BY_MODE, "c": UNGRADABLE}
STAGED = 2
"""A slot that can end before its turn: those of task `a` may hold."""
AT = {"before_stage": STAGED, "inside_stage": STAGED, "after_stage": STAGED, "before_commit": 0}
"""The slot that is hit, where it is not slot 3."""
EARLY = frozenset({"inside_upgrade"})
"""Points before there is a run to resume."""
ELSEWHERE = frozenset(
    {
        *("inside_import", "before_append", "inside_append", "after_append"),
        *("inside_archive", "inside_gc", "inside_delete", "after_delete"),
    }
)
"""Points that no run passes; other tests kill there."""
ONCE = EARLY | {"writing_summary"}
"""Points that are about no slot."""
IN_TWO_PARTS = (
    *("before_unseal", "agent_part_stored", "inside_unseal", "after_unseal", "grader_running"),
)
"""Points that only trials pass whose graders come when the agent has ended."""
SEPARATE = (
    *("before_artifacts", "inside_artifacts", "after_artifacts"),
    *("before_grader_create", "after_grader_create"),
)
"""Points that only trials pass whose graders have a container of their own."""
CASES = [
    *(
        (point, AT.get(point, 3), "same")
        for point in POINTS
        if point not in {*ELSEWHERE, *IN_TWO_PARTS, *SEPARATE}
    ),
    *((point, 3, "separate") for point in (*SEPARATE, "grader_running")),
    *((point, 3, "after_agent") for point in ("agent_running", "inside_unseal", "after_unseal")),
    *((point, 3, "delivered") for point in (*IN_TWO_PARTS, "after_exit")),
    # The transaction that commits slot 0 journals the dispatch of another one.
    ("inside_commit", 0, "same"),
]


def new_project(folder: Path, mode: str) -> Project:
    project = Project(folder, TASKS, max_concurrency=3)
    if mode != "same":
        project.document["benchmark"]["grader"]["mode"] = mode
    if mode == "separate":
        artifacts = [{"path": "/agentlab/workspace"}]
        project.document["benchmark"]["grader"]["artifacts"] = artifacts
    project.save()
    return project


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, image_ids: dict[str, str]
) -> Callable[[str], dict[str, list[Any]]]:
    """The rows of a run that nobody killed, by the mode of its grading."""

    @cache
    def rows(mode: str) -> dict[str, list[Any]]:
        project = new_project(tmp_path_factory.mktemp("whole"), mode)
        project.start("crashed")
        project.check_whole("crashed")
        return project.rows("crashed")

    return rows


@pytest.mark.parametrize(("point", "idx", "mode"), CASES)
def test_killed_there(
    point: str,
    idx: int,
    mode: str,
    tmp_path: Path,
    uninterrupted: Callable[[str], dict[str, list[Any]]],
    engine_log: EngineLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No row is lost or doubled, no agent is started twice, nothing is left over."""
    project = new_project(tmp_path, mode)
    fault = point if point in ONCE else f"{point}:{idx}"
    with monkeypatch.context() as environment:
        environment.setenv(VARIABLE, fault)
        pace = HOLDING if AT.get(point) == STAGED else PASSING
        started = project.run("crashed", *pace)
    with closing(started) as coordinator:
        assert coordinator.finish() == -9, f"{fault} was not reached\n{coordinator.stderr}"
    for slot, attempt in project.running("crashed") if point not in EARLY else ():
        project.open_gate("crashed", slot, attempt)

    again = project.run if point in EARLY else project.resume
    with closing(again("crashed", *PASSING)) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr
    assert project.rows("crashed") == uninterrupted(mode)
    starts = engine_log.starts(project, "crashed")
    parts = 2 if mode in {"after_agent", "separate"} else 1
    assert starts == {(slot, 1): parts for slot in range(len(uninterrupted(mode)["slots"]))}
    project.check_whole("crashed")


def test_an_unknown_point_is_refused(tmp_path: Path) -> None:
    """A misspelt point is an error, not a run that nothing happens to."""
    project = Project(tmp_path, TASKS)
    done = project.command("runs", **{VARIABLE: "after_comit"})
    assert done.returncode == 2
    assert "after_commit" in done.stderr
