"""Disks that are full, or short: nothing is lost, and the run goes on when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments import PASSING, RIGHT, Coordinator, EngineLog, Project
from gateways import KEY, GatewayTrial, Reply, ServedGateway, served_gateway
from own_engine import own_engine
from sample_trials import (
    BUSYBOX,
    GRADES,
    SHELLS,
    Trials,
    brief,
    problems,
    remove_attempt,
    run_attempt,
)
from scripted_providers import ServedProvider, scripted_provider
from sealed_trials import AFTER
from tiers import thorough, tiered
from waiting import wait_until

from labledger import clock
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult
from labledger.records.model_calls import CallState
from labledger.records.outcomes import Reason
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.collect import DISK_WAS_FULL
from labledger.trial.evidence.gateway_calls import AttemptCalls
from labledger.trial.evidence.redaction import Redactor
from labledger.trial.free_disk_space import FullDisks

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
            # Ubuntu's default blocks are larger, and the journal with them.
            ["mkfs.ext4", "-q", "-m", "0", "-b", "1024", image],
            ["mount", "-o", "loop", image, place],
        ):
            subprocess.run(command, check=True)
        mounted.append(place)
        (place / "lost+found").rmdir()
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def project(tmp_path: Path, image_ids: dict[str, str]) -> Project:
    return Project(tmp_path / "project", TASKS, max_concurrency=2)


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


@contextmanager
def begun(project: Project, *words: object) -> Iterator[Coordinator]:
    """A run of eight slots, of which one is committed."""
    with closing(project.run("full", *PASSING, *words)) as coordinator:
        coordinator.until("slot_committed")
        yield coordinator


def resume_to_the_end(project: Project) -> None:
    with closing(project.resume("full", *PASSING, *NO_THRESHOLD)) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr


def check_completed(project: Project) -> None:
    """All is as if there had always been room."""
    assert [status for _, status in project.rows("full")["slots"]] == ["completed"] * 8
    project.check_whole("full")


@thorough
@pytest.mark.parametrize(
    ("place", "megabytes"),
    tiered([(".", 24), ("artifacts", 8), ("runs/full", 16)], default=[(".", 24)]),
    ids=["ledger and all", "artifacts", "run folder"],
)
def test_a_full_disk_is_waited_out(
    project: Project, place: str, megabytes: int, small_disk: Mount, engine_log: EngineLog
) -> None:
    """Wherever writes begin to fail, dispatch pauses; with room again the run is as any other."""
    disk = small_disk(project.lab / place, megabytes)
    with begun(project, *NO_THRESHOLD) as coordinator:
        with filled(disk):
            assert coordinator.until("dispatch_paused")["cause"] == "disk"
            wait_until(lambda: not project.running("full"), "the trials that run to end")
        assert coordinator.finish() == 0, coordinator.stderr
    check_completed(project)
    assert not any(count > 2 for count in engine_log.starts(project, "full").values())


@thorough
def test_a_full_disk_ends_the_run_resumable(project: Project, small_disk: Mount) -> None:
    """When patience ends on a full disk the ledger is whole; with free space, `resume`
    completes it."""
    disk = small_disk(project.lab, 24)
    with begun(project, "--min-free", 0, "--patience", 1) as coordinator, filled(disk):
        assert coordinator.finish() == 3, coordinator.stderr
        assert "Traceback" not in coordinator.stderr
    assert coordinator.of("dispatch_paused")[0]["cause"] == "disk"
    assert coordinator.of("run_ended")[0]["trouble"]
    resume_to_the_end(project)
    check_completed(project)


@pytest.fixture
def mirrors_disk(project: Project, small_disk: Mount) -> Path:
    """A disk on which nothing lies but the most of the mirrors."""
    return small_disk(project.lab / "runs" / "full" / "benchmark", 4)


@thorough
def test_mirrors_that_cannot_follow_catch_up(project: Project, mirrors_disk: Path) -> None:
    """A full disk under the mirrors alone holds nothing back; with room again, they are whole."""
    with begun(project, *NO_THRESHOLD) as coordinator:
        with filled(mirrors_disk):
            coordinator.until("slot_committed", times=6)
        # On a machine with a single processor, another warning comes first.
        warnings = [warning["message"] for warning in coordinator.of("warning")]
        assert any("could not write the mirror" in message for message in warnings)
        assert coordinator.finish() == 0, coordinator.stderr
    assert not coordinator.of("dispatch_paused")
    check_completed(project)


@thorough
def test_mirrors_that_never_can_are_mended_later(project: Project, mirrors_disk: Path) -> None:
    """Where the disk stays full to the end, the run says so; everything is in the ledger."""
    with begun(project, *NO_THRESHOLD) as coordinator, filled(mirrors_disk):
        assert coordinator.finish() == 3
        assert "resuming completes the mirror" in coordinator.stderr
    assert len(project.rows("full")["slots"]) == 8
    resume_to_the_end(project)
    check_completed(project)


@thorough
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


@thorough
def test_an_engine_without_room(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str]
) -> None:
    """Trials whose containers cannot be created on a full disk wait, and are no errors."""
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


@thorough
def test_what_fails_in_a_container_for_want_of_the_engines_room(
    tmp_path: Path, small_disk: Mount, image_ids: dict[str, str]
) -> None:
    """A trial that fills the disk that its container lies on failed of that, not by itself."""
    disk = small_disk(tmp_path / "storage", 48)
    project = Project(tmp_path / "project", {"t0": "cat /dev/zero >/fill"}, max_concurrency=1)
    with own_engine(tmp_path / "engine", disk / "root") as engine:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("DOCKER_HOST", engine.address)
            started = project.run("engine", *PASSING, *NO_THRESHOLD)
        with closing(started) as coordinator:
            assert coordinator.finish() == 3, coordinator.stderr
    assert coordinator.of("run_ended")[0]["complete"]
    ended = [(event["status"], event["reason"]) for event in coordinator.of("trial_finished")]
    assert ended == [("infra_error", "disk_full")] * 4


# -- one trial on a small disk


FILLS = "cat /dev/zero >fill"
"""Leaves no byte free, and fails at that."""
CALLS = f"{FILLS}; mv fill filled; until [ -e /agentlab/out/go ]; do sleep 0.05; done; "
"""Fills the disk, says so where no byte is free, and goes on when it may."""


@pytest.fixture
def on_small_disk(trials: Trials, small_disk: Mount) -> Callable[..., AttemptSpec]:
    """Makes the spec of a trial whose run has a disk of eight megabytes."""

    def make(*commands: str, **settings: Any) -> AttemptSpec:
        spec = trials.spec(*commands, **settings)
        small_disk(spec.plan.run_dir, 8)
        spec.plan.deps_dir.mkdir()
        spec.plan.sealed_dir.mkdir()
        return spec

    return make


PARTS = pytest.mark.parametrize(
    "sealed", tiered([{}, AFTER], default=[{}]), ids=["one part", "two parts"]
)


@PARTS
@pytest.mark.parametrize("image", tiered(SHELLS, default=[BUSYBOX]))
@pytest.mark.parametrize("phase", ["setup", "agent", "grader"])
def test_what_fails_on_a_full_disk_is_not_held_against_the_agent(
    on_small_disk: Callable[..., AttemptSpec], phase: str, image: str, sealed: JsonObject
) -> None:
    """Whichever phase fails where nothing can be written, the trial is an `infra_error` at once."""
    phases = {"setup": "true", "agent": "true", "grader": GRADES} | {phase: FILLS}
    result = run_attempt(on_small_disk(**phases, image=image, **sealed))
    assert brief(result) == ("infra_error", "disk_full", 71)
    assert list(result.phases)[-1:] in ([], [phase])
    assert "disk" in problems(result)


@PARTS
@pytest.mark.parametrize("image", tiered(SHELLS, default=[BUSYBOX]))
def test_room_that_a_later_phase_makes_is_too_late(
    on_small_disk: Callable[..., AttemptSpec], image: str, sealed: JsonObject
) -> None:
    """An agent that failed on a full disk is no agent that failed, whatever its grader removes."""
    result = run_attempt(on_small_disk(FILLS, f"rm fill; {GRADES}", image=image, **sealed))
    assert brief(result) == ("infra_error", "disk_full", 71)


def test_a_first_part_without_room_for_its_note(trials: Trials, as_root: None) -> None:
    """An agent that succeeds and fills the disk is not called a forger because its note is
    missing."""
    spec = trials.spec(f"{FILLS}; true", **AFTER)
    # Of this file system, the last byte can be had.
    disk = spec.plan.run_dir
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "labledger", disk], check=True)
    try:
        spec.plan.deps_dir.mkdir()
        result = run_attempt(spec)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert brief(result) == ("infra_error", "disk_full", 71)


@PARTS
def test_room_that_this_process_makes_is_no_room_that_was_there(
    on_small_disk: Callable[..., AttemptSpec], sealed: JsonObject
) -> None:
    """A failure by a full disk is recognized although another trial's removal has freed space
    since."""
    result = cleared_meanwhile(on_small_disk(CALLS + "exit 4", **sealed))
    assert brief(result) == ("infra_error", "disk_full", 10)
    assert result.message is not None
    assert result.message.endswith("without that: agent_exit_nonzero")


def test_a_trial_that_completed_on_a_full_disk(on_small_disk: Callable[..., AttemptSpec]) -> None:
    """It keeps its result; its evidence says that something may be missing."""
    result = cleared_meanwhile(on_small_disk(CALLS))
    assert brief(result) == ("completed", None, 0)
    assert result.verdict == "pass"
    assert problems(result) == {"disk": DISK_WAS_FULL}


def cleared_meanwhile(spec: AttemptSpec) -> AttemptResult:
    """Run a trial that calls when the disk is full, after which another one makes room there."""
    disks = FullDisks()
    other = replace(spec, slot=replace(spec.slot, schedule_idx=8))
    (other.container.folder / "workspace").mkdir(parents=True)
    (other.container.folder / "workspace" / "big").write_bytes(bytes(4 << 20))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_attempt, spec, full_disks=disks)
        wait_until(
            (spec.container.folder / "workspace" / "filled").exists, "the agent to fill its disk"
        )
        remove_attempt(other, disks)
        (spec.container.folder / "out" / "go").touch()
        return running.result()


# -- the gateway's journals


@pytest.fixture
def answering() -> Iterator[ServedProvider]:
    """A provider that answers each request."""
    turn = {"text": "Well.", "usage": {"input": 10, "output": 3}}
    script = {"keys": [KEY], "tasks": [{"match": "say well", "plain": True, "turns": [turn]}]}
    with scripted_provider(script) as served:
        yield served


def asked(trial: GatewayTrial, pool: ThreadPoolExecutor) -> list[Future[Reply]]:
    """Requests of an agent, more than the last block of its journal has room for."""
    return [pool.submit(trial.ask, "anthropic", "say well") for _ in range(12)]


def in_trouble(gateway: ServedGateway) -> bool:
    """Whether the gateway says that it cannot write."""
    status = gateway.client.status()
    return status is not None and any("could not write" in each for each in status.problems)


@pytest.mark.parametrize("fields", [{}, {"record": True}], ids=["journal", "record"])
def test_calls_wait_for_room_for_their_journal(
    small_disk: Mount, tmp_path: Path, answering: ServedProvider, fields: dict[str, Any]
) -> None:
    """A journal whose disk is full for a moment loses no call, and no call fails."""
    place = small_disk(tmp_path / "lab", 8)
    with served_gateway(place) as gateway, ThreadPoolExecutor(12) as pool:
        trial = gateway.trial(answering.url, **fields)
        with filled(place):
            requests = asked(trial, pool)
            wait_until(lambda: in_trouble(gateway), "a full disk")
            assert not all(request.done() for request in requests)
        assert {request.result().status for request in requests} == {200}
        assert gateway.client.close(trial.folder) is None
        assert [call.state for call in trial.calls] == [CallState.ANSWERED] * 12
        assert not in_trouble(gateway)


def test_a_journal_without_room_is_no_fault_of_the_agent(
    small_disk: Mount, tmp_path: Path, answering: ServedProvider
) -> None:
    """Calls fail after the patience, and whoever closes the attempt hears what was lost."""
    place = small_disk(tmp_path / "lab", 8)
    with served_gateway(place, journal_s=0.5) as gateway, ThreadPoolExecutor(12) as pool:
        trial = gateway.trial(answering.url)
        with filled(place):
            statuses = {request.result().status for request in asked(trial, pool)}
            assert 503 in statuses
            for _ in range(2):
                lost = gateway.client.close(trial.folder)
                assert lost is not None
                assert "No space left" in lost
        use = AttemptCalls.read(trial.folder, Redactor({}), problem=lost, lost=lost)
        failure = use.failure(clock.utc_now())
        assert failure is not None
        assert failure[0] is Reason.GATEWAY_FAILED


def test_a_call_that_was_turned_away_is_journaled_later(
    small_disk: Mount, tmp_path: Path, answering: ServedProvider
) -> None:
    """When there is room again, calls pass, and the journal says that one failed for the disk."""
    place = small_disk(tmp_path / "lab", 8)
    with served_gateway(place, journal_s=0.5) as gateway, ThreadPoolExecutor(12) as pool:
        trial = gateway.trial(answering.url)
        with filled(place):
            assert 503 in {request.result().status for request in asked(trial, pool)}
        assert trial.ask("anthropic", "say well").status == 200
        assert gateway.client.close(trial.folder) is None
        assert trial.calls[-1].state is CallState.ANSWERED
        assert "journal_failed" in {call.reason for call in trial.calls}
        failure = AttemptCalls.read(trial.folder, Redactor({})).failure(clock.utc_now())
        assert failure is not None
        assert failure[0] is Reason.GATEWAY_FAILED
