"""`labledger clean`: what it removes, and what it must never touch."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from experiments import HOLDING, HOLDS, PASSING, Project
from sample_trials import BUSYBOX, ENGINE

from labledger.trial.contract import Labels

pytestmark = pytest.mark.docker


@pytest.fixture
def foreign(image_ids: dict[str, str]) -> Iterator[str]:
    """A running container that labledger did not start, by its name."""
    name = f"foreign-{secrets.token_hex(8)}"
    config = {
        "Image": image_ids[BUSYBOX],
        "Entrypoint": ["sleep", "3600"],
        "HostConfig": {"NetworkMode": "none"},
    }
    ENGINE.create(name, config)
    ENGINE.start(name)
    yield name
    ENGINE.remove(name)


def is_running(name: str) -> bool:
    state = ENGINE.inspect(name)
    return state is not None and state.status == "running"


def test_only_what_nobody_needs_goes(tmp_path: Path, foreign: str) -> None:
    """Beside a live run and a foreign container, only a dead run's containers are removed."""
    project = Project(tmp_path / "project", {"a": HOLDS}, max_concurrency=2)
    with closing(project.run("dead", *HOLDING)) as coordinator:
        project.lab.mkdir(exist_ok=True)
        coordinator.until("slot_dispatched", times=2)
        project.await_agents("dead", 2)
        coordinator.kill()
    dead = set(project.containers("dead").values())

    with closing(project.run("alive", *HOLDING)) as coordinator:
        coordinator.until("slot_dispatched", times=2)
        project.await_agents("alive", 2)
        alive = set(project.containers("alive").values())

        told = project.output("clean")
        assert "labledger resume dead" in told
        assert set(project.containers("dead").values()) == dead, "a trial to go on with was lost"

        told = project.output("clean", "--unfinished", "--dry-run")
        assert all(f"would remove {name}" in told for name in dead)
        assert set(project.containers("dead").values()) == dead

        told = project.output("clean", "--unfinished")
        assert all(f"removed {name}" in told for name in dead)
        assert all(f"kept {name}" in told for name in alive)
        assert project.containers("dead") == {}
        assert alive <= set(project.containers("alive").values())
        assert is_running(foreign)
        assert foreign not in told
        coordinator.kill()

    expected = {"dead": ["`labledger clean --unfinished` removed its container"], "alive": []}
    for run_id in ("dead", "alive"):
        with closing(project.resume(run_id, *PASSING)) as coordinator:
            for idx in project.containers(run_id):
                project.open_gate(run_id, *idx)
            assert coordinator.finish() == 0, coordinator.stderr
        reasons = {told["reason"] for told in coordinator.of("warning") if "reason" in told}
        assert sorted(reasons) == expected[run_id]
        project.check_whole(run_id)


def test_what_carries_half_the_labels_stays(tmp_path: Path, image_ids: dict[str, str]) -> None:
    """`clean` keeps a container that has the ledger's label and no slot's, and says why."""
    project = Project(tmp_path / "project", {"a": HOLDS})
    with closing(project.run("dead", *HOLDING)) as coordinator:
        coordinator.until("slot_dispatched")
        project.await_agents("dead", 1)
        coordinator.kill()
    labels = project.labels("dead") | {Labels.SLOT: "first"}
    name = f"half-{secrets.token_hex(8)}"
    config = {"Image": image_ids[BUSYBOX], "Entrypoint": ["sleep", "60"], "Labels": labels}
    ENGINE.create(name, config)
    try:
        told = project.output("clean", "--unfinished")
        assert f"kept {name}: it lacks the labels of a run, a slot and an attempt" in told
        assert ENGINE.inspect(name) is not None
    finally:
        ENGINE.remove(name)
