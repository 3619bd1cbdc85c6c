"""`--fail-under`: the pass rates that a run must reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from labledger.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger.records import JsonObject


class Gate(NamedTuple):
    variant_id: str | None
    """None for every variant."""
    rate: float


def parse_gates(words: list[str]) -> list[Gate]:
    """`RATE` or `VARIANT=RATE` words. Raises `InvalidInput`."""
    gates, problems = [], []
    for word in words:
        variant, _, rate = word.rpartition("=")
        try:
            gate = Gate(variant or None, float(rate))
        except ValueError:
            gate = Gate(None, -1)
        if 0 <= gate.rate <= 1:
            gates.append(gate)
        else:
            message = f"found {word!r}; expected a rate from 0 to 1, or VARIANT=RATE"
            problems.append(Problem("--fail-under", message))
    if problems:
        raise InvalidInput("the gates given", problems)
    return gates


def require_known(gates: list[Gate], variants: Sequence[str]) -> None:
    """Raise `InvalidInput` for a gate on a variant that the run does not have."""
    expected = " or ".join(variants)
    problems = [
        Problem("--fail-under", f"found variant {gate.variant_id!r}; expected {expected}")
        for gate in gates
        if gate.variant_id is not None and gate.variant_id not in variants
    ]
    if problems:
        raise InvalidInput("the gates given", problems)


def missed(gates: list[Gate], summary: JsonObject) -> list[str]:
    """A sentence for each gate that was missed. A slot without a score does not count as passed."""
    scheduled = {v["variant_id"]: v["scheduled"] for v in summary["ext"]["variants"]}
    passed = {v["variant_id"]: v["pass"] for v in summary["variants"]}
    misses = []
    for gate in gates:
        for variant in [gate.variant_id] if gate.variant_id else scheduled:
            if passed.get(variant, 0) < gate.rate * scheduled[variant]:
                share = f"{passed.get(variant, 0)} of {scheduled[variant]} slots"
                misses.append(f"{variant} passed {share}, which is under {gate.rate:.1%}")
    return misses
