"""`--fail-under`."""

from __future__ import annotations

import pytest

from labledger.cli.pass_rate_gates import (
    PassRateGate,
    missed_gates,
    parse_gates,
    require_known_variants,
)
from labledger.errors import InvalidInput
from labledger.records.pass_rate import PassCounts


def counts(**variants: tuple[int, int]) -> dict[str, PassCounts]:
    """Return variants by name, from the slots that passed and the slots that count."""
    return {name: PassCounts(n, of - n) for name, (n, of) in variants.items()}


def test_both_forms() -> None:
    """A gate is a rate for every variant, or for a named one, whose name may hold equals signs."""
    gates = parse_gates(["0.8", "base=1", "a=b=.5"])
    assert gates == [PassRateGate(None, 0.8), PassRateGate("base", 1.0), PassRateGate("a=b", 0.5)]


@pytest.mark.parametrize("word", ["", "80", "-0.1", "1.01", "nan", "base=", "base=high", "80%"])
def test_what_is_no_rate_is_refused(word: str) -> None:
    """A value that is not a rate is refused before the command begins."""
    with pytest.raises(InvalidInput, match="--fail-under"):
        parse_gates([word])


def test_a_gate_is_for_every_variant_or_one() -> None:
    """Each variant that misses is named with its share; reaching the rate is enough."""
    rates = counts(base=(8, 10), treat=(7, 10))
    assert missed_gates([PassRateGate(None, 0.8)], rates) == [
        "treat passed 7 of 10 trials that count (70.0%), which is under 80.0%"
    ]
    assert missed_gates([PassRateGate("base", 0.8)], rates) == []
    assert missed_gates([PassRateGate("base", 0.9), PassRateGate("treat", 0.9)], rates)[
        1
    ].startswith("treat")


def test_a_gate_goes_by_the_pass_rate() -> None:
    """Excluded slots do not affect a gate, and a variant without a rate misses it."""
    assert missed_gates([PassRateGate("base", 0.4)], counts(base=(4, 10))) == []
    assert missed_gates([PassRateGate("base", 0.5)], counts(base=(4, 10))) != []
    assert missed_gates([PassRateGate(None, 0.0)], counts(base=(0, 0))) == [
        "base has no pass rate: none of its trials counts"
    ]


def test_chosen_results_reach_no_rate() -> None:
    """If slots with a result were rerun, every gate is missed; without gates none is."""
    rates = counts(base=(10, 10))
    (miss,) = missed_gates(
        [PassRateGate("base", 0.1), PassRateGate(None, 0)], rates, has_chosen_results=True
    )
    assert "despite their verdicts" in miss
    assert missed_gates([], rates, has_chosen_results=True) == []


def test_a_variant_that_is_not_there_is_refused() -> None:
    """A mistyped variant is an error before anything runs."""
    require_known_variants([PassRateGate("base", 0.0), PassRateGate(None, 0.5)], ["base", "treat"])
    with pytest.raises(InvalidInput, match="found variant 'bas'; expected base or treat"):
        require_known_variants([PassRateGate("bas", 0.0)], ["base", "treat"])
