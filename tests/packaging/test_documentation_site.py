"""The documentation site: built strictly, and complete without a network."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PROJECT = Path(__file__).parents[2]

_LOADED = re.compile(
    r"""<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=["']?(https?:|//)"""
)
_LOADED_BY_STYLE = re.compile(r"""url\(\s*["']?(https?:|//)""")


def test_site_builds_without_warnings_and_loads_nothing_from_elsewhere() -> None:
    """`scripts/docs` succeeds, and no page or style of the site loads anything from a network."""
    built = subprocess.run(
        ["scripts/docs"], cwd=PROJECT, check=False, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = [*(PROJECT / "build/docs").rglob("*.html")]
    assert len(pages) > 20
    for path in pages:
        assert not _LOADED.search(path.read_text("utf-8")), path
    for path in (PROJECT / "build/docs").rglob("*.css"):
        assert not _LOADED_BY_STYLE.search(path.read_text("utf-8")), path
