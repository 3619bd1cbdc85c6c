"""The experiments of `examples/`: each runs, with the outcomes that its comments promise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labledger import open_ledger

pytestmark = pytest.mark.docker

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "ab-test": {"drafts": {"pass": 2, "fail": 4}, "checks": {"pass": 6}},
    "sealed-grader": {"honest": {"pass": 2, "missing": 1}, "cheat": {"fail": 3}},
    "regression-gate": {"released": {"pass": 4}, "candidate": {"pass": 3, "fail": 1}},
    "sweep": {
        "guesses-1": {"missing": 4},
        "guesses-3": {"pass": 2, "missing": 2},
        "guesses-5": {"pass": 2, "missing": 2},
        "guesses-7": {"pass": 4},
    },
}


def test_every_example_has_an_expected_outcome() -> None:
    """Every example is run here."""
    assert {path.parent.name for path in EXAMPLES.glob("*/experiment.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_has_the_promised_outcome(
    name: str, tmp_path: Path, image_ids: dict[str, str]
) -> None:
    """A copy of the example runs from its folder alone, and every verdict is the expected one."""
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    lab = tmp_path / ".lab"
    script = folder / "check.sh"
    command = [script] if script.exists() else ["labledger", "run", folder, "--quiet"]
    done = subprocess.run(
        [*command, "--lab-dir", lab],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == (1 if script.exists() else 0), done.stdout + done.stderr
    with open_ledger(lab) as ledger:
        rows = ledger.query("SELECT variant_id, verdict, count(*) AS n FROM scores GROUP BY 1, 2")
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        counts.setdefault(row["variant_id"], {})[row["verdict"]] = row["n"]
    assert counts == EXPECTED[name]
