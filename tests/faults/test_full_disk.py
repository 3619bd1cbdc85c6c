"""Disks that are full, or short: nothing is lost, and the run goes on when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from experiments import PASSING, RIGHT, EngineLog, Project, until
from own_engine import own_engine
from trial_kit import Trials, brief

from labledger.trial.worker import run_trial

pytestmark = pytest.mark.docker

LOUD = "sleep 1; head -c 150000 /dev/urandom | base64; " + RIGHT
"""An agent whose output needs room: in its trial folder, then in the artifact store."""
TASKS = {f"t{n}": LOUD for n in range(4)}
NO_THRESHOLD = ("--min-free", "0", "--patience", "60")

Mount = Callable[[Path, int], Path]


@pytest.fixture
def small_disk(as_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """Mounts file systems of their own, of so many megabytes, until the test has ended."""
    mounted: list[Path] = []

    def mount(place: Path, megabytes: int) -> Path:
        image = tmp_path_factory.mktemp("disk") / "image"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        place.mkdir(parents=True, exist_ok=True)
        for command in (
            ["mkfs.ext4", "-q", "-m", "0", image],
            ["mount", "-o", "loop", image, place],
        ):
            subprocess.run(command, check=True)
        mounted.append(place)
        (place / "lost+found").rmdir()
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def filled(place: Path, *, leaving: int = 0) -> Iterator[None]:
    """While this lasts, the disk at `place` has no more than `leaving` bytes free."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while (found := os.statvfs(place)).f_bavail * found.f_frsize > leaving:
            left = found.f_bavail * found.f_frsize - leaving
            try:
                file.write(bytes(min(left, 1 << 20)))
            except OSError:
                break
    try:
        yield
    finally:
        ballast.unlink()


@pytest.mark.parametrize(
    ("place", "megabytes"),
    [(".", 24), ("artifacts", 8)],
    ids=["ledger and all", "artifacts"],
)
def test_a_full_disk_is_waited_out(
    place: str,
    megabytes: int,
    tmp_path: Path,
    small_disk: Mount,
    image_ids: dict[str, str],
    engine_log: EngineLog,
) -> None:
    """Wherever writes begin to fail, dispatch pauses; with room again the run is as any other."""
    project = Project(tmp_path / "project", TASKS, max_concurrency=2)
    disk = small_disk(project.lab / place, megabytes)
    with closing(project.run("full", *PASSING, *NO_THRESHOLD)) as coordinator:
        coordinator.until("slot_committed")
        with filled(disk):
            assert coordinator.until("dispatch_paused")["cause"] == "disk"
            until(lambda: not project.running("full"), "the trials that run to end")
        assert coordinator.finish() == 0, coordinator.stderr
    assert [status for _, status in project.rows("full")["slots"]] == ["completed"] * 8
    project.check_whole("full")
    assert not any(count > 2 for count in engine_log.starts(project, "full").values())


def test_mirrors_that_cannot_follow_catch_up(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str]
) -> None:
    """A full disk under the mirrors alone holds nothing back; with room again, they are whole."""
    project = Project(tmp_path / "project", TASKS, max_concurrency=2)
    disk = small_disk(project.lab / "runs" / "full" / "benchmark", 4)
    with closing(project.run("full", *PASSING, *NO_THRESHOLD)) as coordinator:
        coordinator.until("slot_committed")
        with filled(disk):
            assert "could not write the mirror" in coordinator.until("warning")["message"]
            coordinator.until("slot_committed", times=6)
        assert coordinator.finish() == 0, coordinator.stderr
    assert not coordinator.of("dispatch_paused")
    project.check_whole("full")


def test_mirrors_that_never_can_are_mended_later(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str]
) -> None:
    """Where the disk stays full to the end, the run says so; everything is in the ledger."""
    project = Project(tmp_path / "project", TASKS, max_concurrency=2)
    disk = small_disk(project.lab / "runs" / "full" / "benchmark", 4)
    with closing(project.run("full", *PASSING, *NO_THRESHOLD)) as coordinator:
        coordinator.until("slot_committed")
        with filled(disk):
            assert coordinator.finish() == 3
        assert "resuming mends the mirror" in coordinator.stderr
    assert len(project.rows("full")["slots"]) == 8
    with closing(project.resume("full", *PASSING)) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr
    project.check_whole("full")


def test_a_full_disk_ends_the_run_resumable(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str], engine_log: EngineLog
) -> None:
    """When patience ends on a full disk the ledger is whole; with room, `resume` goes on."""
    project = Project(tmp_path / "project", TASKS, max_concurrency=2)
    disk = small_disk(project.lab, 24)
    with closing(project.run("full", *PASSING, "--min-free", 0, "--patience", 1)) as coordinator:
        coordinator.until("slot_committed")
        with filled(disk):
            assert coordinator.finish() == 3, coordinator.stderr
            assert "Traceback" not in coordinator.stderr
    assert coordinator.of("dispatch_paused")[0]["cause"] == "disk"
    assert coordinator.of("run_ended")[0]["trouble"]
    with closing(project.resume("full", *PASSING, *NO_THRESHOLD)) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr
    assert [status for _, status in project.rows("full")["slots"]] == ["completed"] * 8
    project.check_whole("full")


def test_too_little_room_pauses_before_anything_fails(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str], engine_log: EngineLog
) -> None:
    """Below the threshold dispatch pauses and says how much is missing where; nothing fails."""
    project = Project(tmp_path / "project", TASKS, max_concurrency=1)
    disk = small_disk(project.lab, 24)
    with closing(project.run("short", *PASSING, "--min-free", "6m")) as coordinator:
        coordinator.until("slot_committed")
        with filled(disk, leaving=5 << 20):
            paused = coordinator.until("dispatch_paused")
            assert paused["cause"] == "disk"
            assert f"more must be free at {project.lab}, for the lab" in paused["message"]
            assert "--min-free asks for 6 MB" in paused["message"]
        assert coordinator.finish() == 0, coordinator.stderr
    assert set(engine_log.starts(project, "short").values()) == {1}
    project.check_whole("short")


def test_too_little_room_refuses_a_run(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str]
) -> None:
    """Before the run, a short disk is a failed check that says what is missing; nothing is made."""
    project = Project(tmp_path / "project", TASKS)
    small_disk(project.lab, 8)
    done = project.command("run", project.experiment, *PASSING, "--min-free", "1g")
    assert done.returncode == 3
    assert f"more must be free at {project.lab}" in done.stderr
    assert list(project.lab.iterdir()) == []


def test_an_engine_without_room(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str]
) -> None:
    """Containers that cannot be made for want of room wait, and are no errors of their slots."""
    disk = small_disk(tmp_path / "storage", 48)
    project = Project(tmp_path / "project", {f"t{n}": RIGHT for n in range(6)}, max_concurrency=1)
    with own_engine(tmp_path / "engine", disk / "root") as engine:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("DOCKER_HOST", engine.address)
            started = project.run("engine", *PASSING, *NO_THRESHOLD)
        with closing(started) as coordinator:
            coordinator.until("slot_committed")
            with filled(disk):
                assert coordinator.until("dispatch_paused")["cause"] in {"disk", "refusals"}
            assert coordinator.finish() == 0, coordinator.stderr
        assert [status for _, status in project.rows("engine")["slots"]] == ["completed"] * 12
        project.check_whole("engine")


def test_what_fails_on_a_full_disk_is_not_held_against_the_agent(
    trials: Trials, small_disk: Mount
) -> None:
    """A trial that failed where nothing more could be written is an `infra_error`."""
    spec = trials.spec("head -c 100000000 /dev/zero >big")
    small_disk(spec.plan.run_dir, 4)
    spec.plan.deps_dir.mkdir()
    assert brief(run_trial(spec))[:2] == ("infra_error", "disk_full")
