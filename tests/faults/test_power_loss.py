"""The power goes: what was not synced is lost, torn or zero, and no result is lost with it."""

from __future__ import annotations

import json
import shutil
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from experiments import HOLDING, HOLDS, MEDDLING, PASSING, RIGHT, EngineLog, Project
from sample_trials import ENGINE
from tiers import thorough, tiered

from labledger.export.mirrors import PATHS
from labledger.fault_points import VARIABLE
from labledger.ledger.checking.verify import verify
from labledger.ledger.reader import LedgerReader

pytestmark = pytest.mark.docker

RUN = "power"
LOUD = "echo $AGENTLAB_TASK_ID $mode; head -c 100000 /dev/zero | tr '\\0' x; "
"""Prints more than the ledger keeps in itself: an artifact in a file."""
TASKS = {"a": "sleep 1; " + LOUD + HOLDS, "b": LOUD + RIGHT}
SLOTS = 2 * len(TASKS)
STAGED = 2
"""A slot that can end before its turn: those of task `a` are slow, and may hold."""
WAL_HEADER, FRAME_HEADER = 32, 24


@dataclass(frozen=True)
class Watched:
    """A run that nothing happened to, with all that it did to keep its results."""

    project: Project
    rows: dict[str, list[Any]]
    journal: list[list[Any]]
    copies: list[Path]
    """A folder with the ledger's files for each point that its coordinator passed, in order."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, image_ids: dict[str, str]) -> Watched:
    project = Project(tmp_path_factory.mktemp("watched"), TASKS, max_concurrency=3)
    journal, copies = project.folder / "journal", project.folder / "copies"
    project.environment = MEDDLING | {"MEDDLE_JOURNAL": str(journal), "MEDDLE_COPIES": str(copies)}
    with closing(project.run(RUN, *PASSING)) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr
    project.environment = {}
    project.check_whole(RUN)
    steps = [json.loads(line) for line in journal.read_text().splitlines()]
    return Watched(project, project.rows(RUN), steps, sorted(copies.iterdir()))


class Disk:
    """What of a coordinator's files would be there after a power cut, by its journal."""

    def __init__(self) -> None:
        self.synced: set[int] = set()
        """Inodes whose content is durable."""
        self.waiting: dict[str, set[str]] = defaultdict(set)
        """Names that are not durable yet, by folder."""
        self.inodes: dict[str, int] = {}

    def take(self, kind: str, path: str, inode: int = 0) -> None:
        if kind == "fsync":
            self.synced.add(inode)
            self.waiting.pop(path, None)
            return
        self.inodes[path] = inode
        self.waiting[str(Path(path).parent)].add(Path(path).name)

    def lacks(self, path: Path) -> Path | None:
        """What of a file, or of the folders above it, would be gone."""
        if self.inodes.get(str(path)) not in self.synced:
            return path
        for name in (path, *path.parents):
            if name.name in self.waiting.get(str(name.parent), ()):
                return name
        return None


def test_artifacts_are_durable_before_the_ledger_names_them(watched: Watched) -> None:
    """File, its name, the folders' names: each is synced before the transaction commits."""
    disk = Disk()
    store = watched.project.lab / "artifacts" / "sha256"
    named: set[str] = set()
    for kind, *about in watched.journal:
        if kind != "commit":
            disk.take(kind, *about)
            continue
        named |= set(about[0])
        for sha256 in about[0]:
            assert disk.lacks(store / sha256[:2] / sha256) is None
    assert len(named) >= 4, "what the loud agents printed"


def test_files_of_the_phases_are_durable_before_their_folder_is(watched: Watched) -> None:
    """`deps`, which a later coordinator takes as it finds it, cannot hold half a file."""
    deps = watched.project.lab / "runs" / RUN / "deps"
    disk = Disk()
    for kind, *about in watched.journal:
        if kind == "rename" and about[0] == str(deps):
            break
        if kind != "commit":
            disk.take(kind, *about)
    else:
        raise AssertionError("deps was never put in its place")
    files = [path for path in deps.glob("*/**/*") if path.is_file()]
    assert {path.name for path in files} == {"agent.sh", "grader.sh"}
    for path in (*files, *(path.parent for path in files)):
        assert path.stat().st_ino in disk.synced, path


def test_the_trial_script_is_durable_before_it_has_its_name(watched: Watched) -> None:
    """Every later trial of the run, and every later coordinator, takes it as it finds it.

    Two trials that begin at the same time may each put it in its place.
    """
    [script] = (watched.project.lab / "runs" / RUN / "deps").glob("trial-*.sh")
    disk = Disk()
    placed = []
    for kind, *about in watched.journal:
        if kind == "replace" and about[0] == str(script):
            placed.append(about[1])
            assert placed[-1] in disk.synced
        if kind != "commit":
            disk.take(kind, *about)
    assert script.stat().st_ino in placed


def test_a_start_is_durable_before_it_happens(watched: Watched) -> None:
    """That a trial may have begun is synced for each: its agent must not begin again."""
    traces = str(watched.project.lab / "runs" / RUN / "traces")
    synced = [about for kind, *about in watched.journal if (kind, about[0]) == ("fsync", traces)]
    assert len(synced) >= SLOTS


def test_mirrors_are_durable_before_the_run_is_complete(watched: Watched) -> None:
    """Mirrors are synced before a run is complete, as nobody resumes a complete run."""
    last_commit = max(n for n, (kind, *_) in enumerate(watched.journal) if kind == "commit")
    synced = {about[0] for kind, *about in watched.journal[:last_commit] if kind == "fsync"}
    folder = watched.project.lab / "runs" / RUN
    assert {str(folder / path) for path in PATHS.values()} <= synced


@dataclass(frozen=True)
class Held:
    """What a ledger holds of the run."""

    committed: list[str]
    staged: frozenset[tuple[int, int]]

    def keeps(self, earlier: Held) -> bool:
        """True when nothing that `earlier` holds is lost or changed."""
        still = self.committed[: len(earlier.committed)] == earlier.committed
        done = len(self.committed)
        return still and all(kept in self.staged or kept[0] < done for kept in earlier.staged)


def held(path: Path) -> Held:
    with LedgerReader.open(path) as reader:
        records = [repr(slot) for slot in reader.slot_records(RUN)]
        assert reader.run(RUN).next_schedule_idx == len(records)
        staged = {(idx, found.attempt) for idx, found in reader.staged(RUN).items()}
    return Held(records, frozenset(staged))


def torn(before: bytes, after: bytes) -> Iterator[bytes]:
    """Every state of the log that a power cut can leave between two that were synced.

    Cut at each frame and in the middle of each; with zeros, or a frame missing, in what follows.
    """
    frame = FRAME_HEADER + struct.unpack(">I", after[8:12])[0]
    for start in range(max(len(before), WAL_HEADER), len(after), frame):
        yield after[:start]
        yield after[: start + frame // 2]
        yield after[:start] + bytes(len(after) - start)
        if start + frame < len(after):
            yield after[:start] + bytes(frame) + after[start + frame :]


@thorough
def test_a_torn_log_loses_nothing_that_was_synced(watched: Watched, tmp_path: Path) -> None:
    """At each step of a run, whatever of the next one's log is there, the ledger is whole."""
    path = tmp_path / "ledger.sqlite"
    (tmp_path / "artifacts").symlink_to(watched.project.lab / "artifacts")
    states = 0
    for one, next_one in zip(watched.copies, watched.copies[1:], strict=False):
        logs = [(copy / "ledger.sqlite-wal").read_bytes() for copy in (one, next_one)]
        if logs[0] == logs[1]:
            continue
        assert logs[1].startswith(logs[0]), "the log was not begun anew"
        shutil.copyfile(one / "ledger.sqlite", path)
        earlier = after_a_cut(path, logs[0])
        later = after_a_cut(path, logs[1])
        found = verify(path)
        assert found.is_clean, found
        assert later.keeps(earlier)
        for log in torn(*logs):
            states += 1
            left = after_a_cut(path, log)
            assert left.keeps(earlier)
            assert later.keeps(left)
    assert states > 10 * SLOTS
    assert len(later.committed) == SLOTS


def after_a_cut(path: Path, log: bytes) -> Held:
    """What a ledger with this log holds, of which nothing in memory is left."""
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    path.with_name(path.name + "-wal").write_bytes(log)
    return held(path)


@pytest.mark.parametrize(
    ("point", "slot"),
    tiered(
        [
            ("inside_stage", STAGED),
            ("after_stage", STAGED),
            ("inside_commit", 1),
            ("after_commit", 2),
        ],
        default=[("inside_commit", 1)],
    ),
)
def test_power_lost_at(
    point: str,
    slot: int,
    tmp_path: Path,
    watched: Watched,
    engine_log: EngineLog,
) -> None:
    """Resumed after a cut there, nothing is lost or run again, and the mirrors are whole."""
    project = Project(tmp_path, TASKS, max_concurrency=3)
    project.environment = {VARIABLE: f"{point}:{slot}"}
    with closing(project.run(RUN, *(HOLDING if "stage" in point else PASSING))) as coordinator:
        assert coordinator.finish() == -9, coordinator.stderr
    project.environment = {}
    for idx, attempt in project.running(RUN):
        project.open_gate(RUN, idx, attempt)
    cut_power(project)
    if point == "after_stage":
        # What is staged needs nothing else any more.
        ENGINE.remove(project.containers(RUN)[slot, 1])
        project.delete_trial_folder(RUN, slot)
    with closing(project.resume(RUN, *PASSING)) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr
    assert coordinator.of("warning") == []
    assert project.rows(RUN) == watched.rows
    assert engine_log.starts(project, RUN) == {(idx, 1): 1 for idx in range(SLOTS)}
    project.check_whole(RUN)


def cut_power(project: Project) -> None:
    """Take from a lab folder whatever no sync has made durable, each mirror in another way."""
    ledger = project.lab / "ledger.sqlite"
    ledger.with_name("ledger.sqlite-shm").unlink()
    log = ledger.with_name("ledger.sqlite-wal")
    content = log.read_bytes()
    frame = FRAME_HEADER + struct.unpack(">I", content[8:12])[0]
    log.write_bytes(content + content[-frame:] + content[-frame : -frame // 2])
    shutil.rmtree(project.lab / "artifacts" / "incoming")
    folder = project.lab / "runs" / RUN
    for damage, path in zip(DAMAGE, PATHS.values(), strict=True):
        damage(folder / path)


def cut_short(mirror: Path) -> None:
    content = mirror.read_bytes()
    mirror.write_bytes(content[: len(content) // 2])


def emptied(mirror: Path) -> None:
    mirror.write_bytes(b"")


def with_zeros_at_its_end(mirror: Path) -> None:
    content = mirror.read_bytes()
    half = len(content) // 2
    mirror.write_bytes(content[:half] + bytes(len(content) - half))


def with_a_hole(mirror: Path) -> None:
    """A block that was not written out before a later one."""
    content = mirror.read_bytes()
    block = max(0, content.find(b"\n")) // 2
    mirror.write_bytes(bytes(block) + content[block:])


def gone_with_its_folder(mirror: Path) -> None:
    shutil.rmtree(mirror.parent)


DAMAGE = (
    with_a_hole,
    with_zeros_at_its_end,
    gone_with_its_folder,
    cut_short,
    with_a_hole,
    emptied,
)
"""What happens to each mirror."""
