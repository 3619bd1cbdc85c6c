"""The notes of attempts: what is durable of them, and what is removed with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from labledger.trial import attempt_notes


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """The folder of an attempt, which does not exist."""
    return tmp_path / "trials" / "000007-1"


def notes(trial: Path) -> list[str]:
    return sorted(path.name for path in (trial.parents[1] / attempt_notes.FOLDER).iterdir())


def test_a_marker_that_could_not_be_removed_durably_is_synced_again(
    trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start is tried again after an EIO: the marker is gone then, but perhaps not on the disk."""
    attempt_notes.mark_not_started(trial)
    synced: list[Path] = []

    def fail_once(folder: Path) -> None:
        synced.append(folder)
        if len(synced) == 1:
            raise OSError("EIO")

    monkeypatch.setattr(attempt_notes, "sync_folder", fail_once)
    with pytest.raises(OSError, match="EIO"):
        attempt_notes.clear_not_started(trial)
    assert not attempt_notes.is_marked_not_started(trial)
    attempt_notes.clear_not_started(trial)
    assert len(synced) == 2


def test_an_attempt_that_never_had_notes_can_start(trial: Path) -> None:
    """There is no folder to sync."""
    attempt_notes.clear_not_started(trial)
    assert not trial.parents[1].joinpath(attempt_notes.FOLDER).exists()


def test_unfinished_notes_of_a_killed_process_are_removed(trial: Path) -> None:
    """They have hidden names. Those of other attempts stay."""
    other = trial.with_name("000017-1")
    for each in (trial, other):
        attempt_notes.add_restart_reason(each, "killed")
        (name,) = [name for name in notes(trial) if name.startswith(each.name)]
        (trial.parents[1] / attempt_notes.FOLDER / f".{name}.0123456789abcdef").write_bytes(b"[")
    attempt_notes.remove_notes(trial)
    assert notes(trial) == [".000017-1.notes.0123456789abcdef", "000017-1.notes"]
