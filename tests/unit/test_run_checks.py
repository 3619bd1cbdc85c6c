"""The checks that need no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from labledger.runner import checks
from labledger.runner.lab import Lab


def test_a_full_disk_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little room where the lab will lie is a failure that says how much is needed where."""
    lab = Lab(tmp_path / "deep" / ".lab")
    assert checks.check_disk(lab).ok
    monkeypatch.setattr(checks, "MIN_FREE_BYTES", 1 << 60)
    check = checks.check_disk(lab)
    assert not check.ok
    assert not check.warning
    assert str(tmp_path) in check.detail
    assert "GB" in (check.hint or "")


def test_a_check_as_json() -> None:
    """A program sees what a person sees."""
    check = checks.Check("disk", "1 GB free", ok=False, hint="make room", warning=True)
    assert check.as_json() == {
        "name": "disk",
        "ok": False,
        "warning": True,
        "detail": "1 GB free",
        "hint": "make room",
    }
