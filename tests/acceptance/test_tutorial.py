"""The tutorial, word by word: its commands, in its order, have the outcome that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial.md"

REPAIR = "sed -i '/^\\/\\//d' tests/median.json"
"""What the tutorial says to do by hand before the stored trials are graded again."""


def test_tutorial_works_as_written(tmp_path: Path, image_ids: dict[str, str]) -> None:
    """Every command of the tutorial succeeds, and the tables it shows are what is printed."""
    script, shown = ["set -e"], []
    text = TUTORIAL.read_text("utf-8")
    for kind, block in re.findall(r"(?ms)^```(sh|console)\n(.*?)^```", text):
        for line in block.splitlines():
            if kind == "sh" and not line.startswith(("scripts/", "source ")):
                script.append(line)
            elif line.startswith("$ "):
                script.append(REPAIR if line.startswith("$ labledger regrade") else ":")
                script.append(line.removeprefix("$ "))
            elif re.match(r"(careful|hasty) +\d|  grade_error → ", line):
                shown.append(line.split())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "COLUMNS": "100"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(shown) == 5
    printed = [line.split() for line in done.stdout.splitlines()]
    for words in shown:
        assert words in printed
    assert (tmp_path / "demo/report.html").exists()
