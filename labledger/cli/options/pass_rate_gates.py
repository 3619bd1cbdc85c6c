"""`--fail-under`: the pass rates that a run must reach.

Gates are parsed, and variants checked, before the run begins; rates are compared when it has
ended. A gate that is missed is exit code 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from labledger.api import InvalidInput, Problem
from labledger.text.figures import percent
from labledger.text.phrases import counted_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from labledger.api import PassCounts


class Gate(NamedTuple):
    """The smallest pass rate that a variant must reach."""

    variant_id: str | None
    """None for every variant."""
    rate: float


def parse_gates(words: list[str]) -> list[Gate]:
    """Return the gates of `RATE` or `VARIANT=RATE` words. Raises `InvalidInput`."""
    gates, problems = [], []
    for word in words:
        variant, _, rate = word.rpartition("=")
        try:
            gate = Gate(variant or None, float(rate))
        except ValueError:
            gate = Gate(None, -1)  # Refused below, like any rate out of range.
        if 0 <= gate.rate <= 1:
            gates.append(gate)
        else:
            message = f"found {word!r}; expected a rate from 0 to 1, or VARIANT=RATE"
            problems.append(Problem("--fail-under", message))
    if problems:
        raise InvalidInput("the gates given", problems)
    return gates


def require_known_variants(gates: list[Gate], variants: Sequence[str]) -> None:
    """Raise `InvalidInput` for a gate on a variant that the run does not have."""
    expected = " or ".join(variants)
    problems = [
        Problem("--fail-under", f"found variant {gate.variant_id!r}; expected {expected}")
        for gate in gates
        if gate.variant_id is not None and gate.variant_id not in variants
    ]
    if problems:
        raise InvalidInput("the gates given", problems)


def missed_gates(gates: list[Gate], pass_counts: Mapping[str, PassCounts]) -> list[str]:
    """Return a sentence for each gate that a variant missed.

    A variant without a counted slot has no pass rate, and misses every gate.
    """
    misses = []
    for gate in gates:
        for name in [gate.variant_id] if gate.variant_id else pass_counts:
            passes = pass_counts[name]
            if passes.rate is None:
                misses.append(f"{name} has no pass rate: none of its slots counts")
            elif passes.rate < gate.rate:
                slots = counted_of(passes.passed, passes.counted, "slot")
                share = f"{slots} that count ({percent(passes.rate)})"
                misses.append(f"{name} passed {share}, which is under {percent(gate.rate)}")
    return misses
