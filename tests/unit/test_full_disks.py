"""The memory of which disks were seen full, and what fills it."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
from sample_trials import Trials

from labledger.storage.artifact_store import ArtifactStore
from labledger.trial import full_disks
from labledger.trial.evidence.artifacts import INLINE_LIMIT, EvidenceCollector
from labledger.trial.evidence.collect import redactor_for
from labledger.trial.life import inputs

FULL = Path("/proc")
"""A file system on which nothing is ever free."""


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disks, "_last_full", {})


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_was_full_since_some_time(tmp_path: Path) -> None:
    """What was seen counts for whatever began before, on that disk, wherever it lies there."""
    began = time.monotonic()
    full_disks.record_full(tmp_path)
    (tmp_path / "folder").mkdir()
    assert full_disks.were_full_since([Path("/dev"), tmp_path / "folder"], began)
    assert not full_disks.were_full_since([tmp_path], time.monotonic())
    assert not full_disks.were_full_since([Path("/dev")], began)


def test_looking_is_enough(tmp_path: Path) -> None:
    """A look that finds a disk full is remembered; one that finds room is not."""
    began = time.monotonic()
    full_disks.check_disks([FULL, tmp_path, tmp_path / "nothing"])
    assert set(full_disks._last_full) == {FULL.stat().st_dev}
    assert full_disks.were_full_since([tmp_path, FULL], began)
    assert not full_disks.were_full_since([tmp_path, tmp_path / "nothing"], began)


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EDQUOT, "no more for you"), True),
        (OSError(errno.EIO, "broken"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_failures_for_want_of_room(tmp_path: Path, error: BaseException, noted: bool) -> None:
    """A quota shows in no look at a disk; the write that it refused tells."""
    full_disks.record_write_error(tmp_path, error)
    assert full_disks.were_full_since([tmp_path], 0.0) == noted


@pytest.mark.parametrize(
    ("free", "is_full"),
    [
        (full_disks.FreeSpace(full_disks.FULL_BYTES, None), False),
        (full_disks.FreeSpace(full_disks.FULL_BYTES - 1, None), True),
        (full_disks.FreeSpace(full_disks.FULL_BYTES, 1), False),
        (full_disks.FreeSpace(full_disks.FULL_BYTES, 0), True),
    ],
)
def test_what_is_full(free: full_disks.FreeSpace, is_full: bool) -> None:
    """A disk is full without a megabyte, and where not one more file can be made."""
    assert free.is_full == is_full


def test_a_folder_that_could_not_be_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a trial's preparation wrote is gone when anybody looks: that it failed is noted."""
    spec = Trials(tmp_path, {}).spec()
    monkeypatch.setattr(inputs, "_fill", no_room)
    with pytest.raises(OSError, match="No space"):
        inputs.prepare_trial_folder(spec)
    assert full_disks.were_full_since(spec.plan.disks, 0.0)


def test_an_artifact_that_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of a large artifact, on the disk of the artifacts."""
    spec = Trials(tmp_path, {}).spec()
    monkeypatch.setattr(ArtifactStore, "put_bytes", no_room)
    spec.plan.store_root.mkdir()
    with pytest.raises(OSError, match="No space"):
        EvidenceCollector(spec, redactor_for(spec)).add_artifact(bytes(INLINE_LIMIT + 1))
    assert full_disks.were_full_since([spec.plan.store_root], 0.0)
