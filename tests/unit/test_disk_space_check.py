"""The disk space checks, which need no engine."""

from __future__ import annotations

from pathlib import Path

from labledger.checks import check_results
from labledger.trial.free_disk_space import DiskSpace


def test_a_full_disk_is_found_before_the_run(tmp_path: Path) -> None:
    """Too little room for the lab folder is a failure that says where and how much is missing."""
    assert check_results.check_disk_space(DiskSpace.of(tmp_path, {})).ok
    check = check_results.check_disk_space(DiskSpace.of(tmp_path, {}, min_free_bytes=1 << 60))
    assert not check.ok
    assert not check.warning
    assert str(tmp_path) in check.detail
    assert "more must be free" in check.detail
    assert "`min_free_bytes=`" in (check.hint or "")


def test_the_engine_needs_room_too(tmp_path: Path) -> None:
    """The engine's folder is checked only if it is on this machine."""
    engine_root = tmp_path / "engine"
    engine_root.mkdir()
    here = DiskSpace.of(tmp_path, {"DockerRootDir": str(engine_root)})
    assert str(engine_root) in check_results.check_disk_space(here).detail
    elsewhere = DiskSpace.of(tmp_path, {"DockerRootDir": "/no/such/folder"})
    assert list(elsewhere.locations) == [tmp_path]
    assert elsewhere.find_shortage() is None


def test_a_check_as_json() -> None:
    """The JSON form of a check has the same facts as its text."""
    check = check_results.CheckResult("disk", "1 GB free", ok=False, hint="make room", warning=True)
    assert check.as_json() == {
        "name": "disk",
        "ok": False,
        "warning": True,
        "detail": "1 GB free",
        "hint": "make room",
    }
