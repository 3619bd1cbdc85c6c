"""The mutants of the simulation: patches that must fit the product as it is."""

from __future__ import annotations

import pytest
from simulation import mutants


@pytest.mark.parametrize("name", mutants.names())
def test_a_mutant_still_applies(name: str) -> None:
    """Every patch says what it breaks, and changes the product as it is today."""
    first = (mutants.FOLDER / f"{name}.patch").read_text("utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20
    mutants.apply(name, mutants.PROJECT, "--dry-run")
