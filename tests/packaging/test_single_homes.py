"""Rules and phrases that once stood in several modules stand in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "labledger"
HOMES = {
    r"is paused since": "text/control_phrases.py",
    r"killed, or its machine": "text/control_phrases.py",
    r"\bdeclared lost: \{": "text/notice_sentences.py",
    r"the request of \{": "text/control_phrases.py",
}
"""By a pattern of its text, the module that alone may hold a rule."""


@pytest.mark.parametrize("pattern", HOMES)
def test_a_rule_has_one_home(pattern: str) -> None:
    """Only the home of a rule holds its text."""
    holders = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text("utf-8"))
    }
    assert holders == {HOMES[pattern]}
