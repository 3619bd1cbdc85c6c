"""Decide what a comparison shows, and whether its gates are passed.

Decisions and gates use the same intervals, which hold together for all comparisons of the family.
Their sentences are in `compare.sentences`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from labledger.compare import sentences
from labledger.compare.comparison_document import (
    Compared,
    Comparison,
    Decision,
    Equivalence,
    GateResult,
)
from labledger.compare.options import Validity
from labledger.compare.statistics.samples import Estimate


def decide(compared: Compared, document: Comparison) -> Decision:
    """Return what a comparison shows.

    A difference is shown if its (corrected) p value is below 1 less the confidence. Then its
    interval, if there is one, does not contain 0.
    """
    difference, test = compared.difference, compared.test
    if difference is None:
        return Decision("nothing_paired", sentences.nothing_paired(compared))
    if compared.validity == Validity.NONE:
        return Decision("not_shown", sentences.unfinished(compared, difference, document))
    if test is None:
        text = sentences.not_replicated(compared, difference, document)
        return Decision("not_shown", text)
    if not is_shown(compared, document):
        return Decision("not_shown", sentences.not_shown(compared, difference, test, document))
    verdict = _verdict(compared, difference, document)
    return Decision(verdict, sentences.shown(compared, difference, test, document, verdict))


def is_shown(compared: Compared, document: Comparison) -> bool:
    """Return whether a difference is shown, of whatever size."""
    test = compared.test
    return test is not None and test.p_decisive < document.level


def _verdict(compared: Compared, difference: Estimate, document: Comparison) -> str:
    """Return `better` or `worse`, or `higher` or `lower` where no side can be called better."""
    is_higher = difference.value > 0
    if compared.same_trials or document.lower_is_better is None:
        return "higher" if is_higher else "lower"
    return "better" if is_higher is not document.lower_is_better else "worse"


def decide_equivalence(
    compared: Compared, document: Comparison, limit: float | None
) -> Equivalence | None:
    """Return whether both sides are shown to differ by less than `limit`; None without a limit.

    The interval's inclusion in ±`limit` is the same as two one-sided tests, each at half of 1 less
    the confidence (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657–680).
    """
    if limit is None:
        return None
    difference = compared.difference
    if difference is None or compared.test is None:
        return Equivalence(limit, "not_shown", f"{sentences.no_gate_test(compared)}.")
    verdict = _equivalence(difference, limit)
    text = f"{sentences.equivalence(compared, difference, document, limit, verdict)}."
    return Equivalence(limit, verdict, text)


def _equivalence(difference: Estimate, limit: float) -> str:
    low, high = difference.low, difference.high
    if low is None or high is None:
        return "not_shown"
    if -limit < low and high < limit:
        return "equivalent"
    return "different" if low >= limit or high <= -limit else "not_shown"


def decide_gates(
    comparisons: Sequence[Compared], document: Comparison, limits: Mapping[str, float]
) -> Iterator[GateResult]:
    """Yield the result of each gate for each comparison; without pairs, a gate is missed.

    `limits` are those of `CompareOptions.gates`. The intervals are those of the whole family, so
    that a gate is missed by chance as seldom with twenty treatments as with one.
    """
    for parameter, limit in limits.items():
        option = f"--{parameter.replace('_', '-')}"
        for compared in comparisons:
            passed, text = _gate(parameter, limit, compared, document)
            yield GateResult(option, limit, str(compared.b.side), passed, text)


def _gate(
    parameter: str, limit: float, compared: Compared, document: Comparison
) -> tuple[bool, str]:
    difference = compared.difference
    if difference is None or compared.test is None:
        return False, sentences.no_gate_test(compared)
    if parameter == "require_equivalent":
        verdict = _equivalence(difference, limit)
        text = sentences.equivalence(compared, difference, document, limit, verdict)
        return verdict == "equivalent", text
    gain = _gain_bounds(difference, document)
    if parameter == "fail_if_worse":
        is_shown = gain is not None and gain[1] < -limit
        passed = not is_shown
    else:
        is_shown = passed = gain is not None and gain[0] > -limit
    return passed, sentences.gate(parameter, limit, compared, difference, document, is_shown)


def _gain_bounds(difference: Estimate, document: Comparison) -> tuple[float, float] | None:
    """Return the interval of B's advantage over A, in the direction that is better."""
    if difference.low is None or difference.high is None:
        return None
    if document.lower_is_better:
        return -difference.high, -difference.low
    return difference.low, difference.high
