"""The gates of `--fail-under`: the smallest pass rates that a run must reach.

Gates are checked before the run starts, and applied after it. A missed gate is exit code 1. The
gates of a comparison, which need a test, are in the library (`CompareOptions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from labledger.errors import InvalidInput, Problem
from labledger.text.figures import percent
from labledger.text.words import counted_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from labledger.results import PassCounts

_CHOSEN_RESULTS = (
    "trials of the run were run again despite their verdicts (`rerun --despite-verdict`), and pass "
    "rates of chosen results decide nothing"
)


class PassRateGate(NamedTuple):
    """The smallest pass rate that a variant must reach."""

    variant_id: str | None
    """None for every variant."""
    rate: float


def parse_gates(words: list[str]) -> list[PassRateGate]:
    """Return the gates of `RATE` or `VARIANT=RATE` words. Raises `InvalidInput`."""
    gates, problems = [], []
    for word in words:
        variant, _, rate = word.rpartition("=")
        try:
            gate = PassRateGate(variant or None, float(rate))
        except ValueError:
            gate = PassRateGate(None, -1)  # Refused below, like any rate out of range.
        if 0 <= gate.rate <= 1:
            gates.append(gate)
        else:
            message = f"found {word!r}; expected a rate from 0 to 1, or VARIANT=RATE"
            problems.append(Problem("--fail-under", message))
    if problems:
        raise InvalidInput("the gates given", problems)
    return gates


def require_known_variants(gates: list[PassRateGate], variants: Sequence[str]) -> None:
    """Raise `InvalidInput` for a gate on a variant that the run does not have."""
    expected = " or ".join(variants)
    problems = [
        Problem("--fail-under", f"found variant {gate.variant_id!r}; expected {expected}")
        for gate in gates
        if gate.variant_id is not None and gate.variant_id not in variants
    ]
    if problems:
        raise InvalidInput("the gates given", problems)


def missed_gates(
    gates: list[PassRateGate],
    pass_counts: Mapping[str, PassCounts],
    *,
    has_chosen_results: bool = False,
) -> list[str]:
    """Return a sentence for each gate that a variant missed.

    A variant without a counted slot has no pass rate, and misses every gate. If slots with results
    were run again (`has_chosen_results`), every gate is missed.
    """
    if has_chosen_results:
        return [_CHOSEN_RESULTS] if gates else []
    misses = []
    for gate in gates:
        for name in [gate.variant_id] if gate.variant_id else pass_counts:
            passes = pass_counts[name]
            if passes.rate is None:
                misses.append(f"{name} has no pass rate: none of its trials counts")
            elif passes.rate < gate.rate:
                trials = counted_of(passes.passed, passes.counted, "trial")
                share = f"{trials} that count ({percent(passes.rate)})"
                misses.append(f"{name} passed {share}, which is under {percent(gate.rate)}")
    return misses
