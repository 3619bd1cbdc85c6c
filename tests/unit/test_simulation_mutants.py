"""The mutants of the simulation are patches that must apply to the current code."""

from __future__ import annotations

import pytest
from simulation import mutants


@pytest.mark.parametrize("name", mutants.names())
def test_a_mutant_still_applies(name: str) -> None:
    """Every patch says what it breaks, and changes the current code."""
    first = (mutants.FOLDER / f"{name}.patch").read_text("utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20
    mutants.apply(name, mutants.PROJECT, "--dry-run")


def test_a_world_that_fails_anyway_finds_no_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant counts as found only if the unchanged code passes the same world."""
    outputs = {
        mutants.PROJECT: "seed 7: Violation: every run ends: r-1 has not ended in time",
    }
    failed = f"{outputs[mutants.PROJECT]}\nsimulate: 8 runs, 160 slots committed, in 9 s\n"
    monkeypatch.setattr(mutants, "_worlds_of", lambda copy, *_: outputs.get(copy, failed))
    verdict = mutants.simulate("synchronous-off", 1)
    assert (verdict.worlds, verdict.guarantee) == (0, "seed 7 fails without it, too")
    outputs[mutants.PROJECT] = "simulate: every guarantee held"
    verdict = mutants.simulate("synchronous-off", 1)
    assert (verdict.worlds, verdict.guarantee[:15]) == (8, "every run ends:")
