"""Comparisons over real ledgers: what is paired, what is left out, and what is concluded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import comparison_kit as runs
import pytest

from labledger import schema
from labledger.analysis import estimates, paired_tests
from labledger.analysis.comparison import Compared, Comparison, Detectable, SideReport, Significance
from labledger.analysis.decision import decide
from labledger.analysis.question import CompareOptions, Errors
from labledger.analysis.rates import Estimate
from labledger.api import open_ledger
from labledger.errors import InvalidInput, RunNotFound

BASE_BETTER = {"base": "PPPPPPPPPPPF", "treat": "FFFFFFFPPPPF"}
"""Twelve tasks, seven lost."""


def compare(path: Path, *sides: str, **options: Any) -> Comparison:
    with open_ledger(path) as ledger:
        found = ledger.compare(*sides, options=CompareOptions(**options))
    schema.check(found.as_json(), "comparison_v1")
    return found


def only(path: Path, *sides: str, **options: Any) -> Compared:
    (found,) = compare(path, *sides, **options).comparisons
    return found


def left_out(found: Compared) -> dict[tuple[str, str], int]:
    return {(left.side, left.reason): left.pairs for left in found.left_out}


# -- what is compared with what


def test_a_run_compares_its_baseline_with_every_treatment(path: Path) -> None:
    """With several treatments, p values are corrected by Holm's method."""
    runs.make_run(path, {**BASE_BETTER, "other": "FFPPPPPPPPPP", "same": "PPPPPPPPPPPF"})
    found = compare(path, "run-1").comparisons
    assert [c.labels for c in found] == [("base", "treat"), ("base", "other"), ("base", "same")]
    p_values = [c.test.p for c in found if c.test]
    assert p_values == [
        pytest.approx(paired_tests.mcnemar(g, n)) for g, n in ((0, 7), (1, 2), (0, 0))
    ]
    corrected = [c.test.p_holm for c in found if c.test]
    assert corrected == pytest.approx(paired_tests.holm(p_values))
    alone = only(path, "run-1", "base", "treat")
    assert alone.test is not None
    assert alone.test.p_holm is None
    # What one of three comparisons can show is more than what one alone can.
    assert found[0].detectable is not None
    assert alone.detectable is not None
    assert (found[0].detectable.difference or 2) > (alone.detectable.difference or 2)


def test_two_runs_compare_variants_of_the_same_name(path: Path) -> None:
    """Paired across the runs by task and replication; one named side names the other."""
    runs.make_run(path, {"base": "PPF", "treat": "FFF", "gone": "FFF"}, "one")
    runs.make_run(path, {"base": "PFF", "treat": "PPP"}, "two")
    runs.make_run(path, {"solo": "PPP"}, "three")
    runs.make_run(path, {"alone": "PPF"}, "four")
    found = compare(path, "one", "two").comparisons
    assert [(str(c.a.side), str(c.b.side)) for c in found] == [
        ("one:base", "two:base"),
        ("one:treat", "two:treat"),
    ]
    assert [c.difference.value for c in found if c.difference] == pytest.approx([-1 / 3, 1])
    assert only(path, "one:treat", "two").labels == ("one", "two")
    assert only(path, "one:gone", "two:treat").labels == ("one:gone", "two:treat")
    assert only(path, "three", "four").labels == ("three:solo", "four:alone")
    assert only(path, "one:base", "one:treat") == only(path, "one", "base", "treat")


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        ((), "found nothing"),
        (("one", "base", "tread"), "did you mean 'treat'"),
        (("one:nobody", "two"), "its variants: base, treat"),
        (("one", "base", "base"), "compared with itself"),
        (("one", "one"), "named twice"),
        (("one", "two", "three", "four"), "expected RUN"),
        (("one:base",), "expected RUN"),
        (("one", "two"), "no variant in common"),
        (("two",), "no baseline and treatment"),
    ],
)
def test_sides_that_make_no_sense_are_refused(
    path: Path, sides: tuple[str, ...], words: str
) -> None:
    """Each with what was found and what to name instead."""
    runs.make_run(path, {"base": "P", "treat": "F"}, "one")
    runs.make_run(path, {"solo": "P"}, "two")
    with pytest.raises(InvalidInput, match=words):
        compare(path, *sides)
    with pytest.raises(RunNotFound):
        compare(path, "absent", "one")


# -- what is paired, and what is left out


def test_what_the_agent_brought_about_is_not_passed(path: Path) -> None:
    """Crashes without a verdict, and the verdict error, are failures; the laboratory's are not."""
    runs.make_run(path, {"base": "PPPPPPPPP", "treat": "PatEAsigG"})
    found = only(path, "run-1")
    assert found.pairs == 5
    assert found.counts is not None
    assert (found.counts.both, found.counts.only_a) == (1, 4)
    assert left_out(found) == {
        ("b", "setup_error"): 1,
        ("b", "infra_error"): 1,
        ("b", "grade_error"): 2,
    }


def test_errors_can_be_counted_in_other_ways(path: Path) -> None:
    """Left out or all failures, as asked; the other ways are always told beside."""
    runs.make_run(path, {"base": "PPPPPPPP-", "treat": "PPatEAip-"})
    shown = {errors: only(path, "run-1", errors=errors) for errors in Errors}
    assert [found.pairs for found in shown.values()] == [6, 3, 7]
    assert left_out(shown[Errors.LEFT_OUT]) == {
        ("b", "agent_error"): 1,
        ("b", "agent_timeout"): 1,
        ("b", "verdict_error"): 1,
        ("b", "infra_error"): 1,
        ("b", "skipped_pruned"): 1,
        ("both", "not_committed"): 1,
    }
    for errors, found in shown.items():
        told = {s.errors: (s.pairs, s.difference) for s in found.sensitivity}
        others = {e.value: (f.pairs, f.difference) for e, f in shown.items() if e is not errors}
        assert told == others


def test_both_sides_must_have_the_task_as_it_was(path: Path) -> None:
    """Tasks that changed, are not there, or are not committed yet are counted and left out."""
    runs.make_run(path, {"base": "PPPPP"}, "one", digests={"t01": "old"})
    runs.make_run(path, {"base": "PPP-"}, "two", digests={"t01": "new"})
    found = only(path, "one", "two")
    assert left_out(found) == {
        ("both", "task_changed"): 1,
        ("b", "not_committed"): 1,
        ("b", "not_scheduled"): 1,
    }
    assert found.pairs == 2
    assert [row.left_out for row in found.by_task if row.left_out] == [
        ("both: task_changed",),
        ("b: not_committed",),
        ("b: not_scheduled",),
    ]
    assert "run two is not complete: 3 of 4 slots are committed" in found.warnings


def test_other_graders_and_images_are_told(path: Path) -> None:
    """Between runs, whatever else could make the difference is a warning."""
    first = {"benchmark": {"name": "x"}, "grader": {"command": ["a"]}}
    second = {
        "benchmark": {"name": "y"},
        "grader": {"command": ["a"]},
        "files": {"grader": [{"name": "g", "sha256": "1"}]},
    }
    runs.make_run(path, {"base": "P"}, "one", resolved=first, images={"i": "1"})
    runs.make_run(path, {"base": "P"}, "two", resolved=second, images={"i": "2"})
    runs.make_run(path, {"base": "P"}, "three", resolved=first, images={"i": "1"})
    told = " / ".join(only(path, "one", "two").warnings)
    assert "benchmarks differ: x and y" in told
    assert "graders differ" in told
    assert "image i was not the same" in told
    assert only(path, "one", "three").warnings == ()


def test_nothing_paired_is_said(path: Path) -> None:
    """Without a pair there are no figures, and no gate is passed."""
    runs.make_run(path, {"base": "ii", "treat": "PP"})
    found = compare(path, "run-1", fail_if_worse=0.5, require_not_worse=0.5)
    (compared,) = found.comparisons
    assert compared.decision.verdict == "nothing_paired"
    assert (compared.difference, compared.test, compared.a.mean) == (None, None, None)
    assert [gate.passed for gate in found.gates] == [False, False]


# -- figures and decisions


def test_a_difference_is_shown(path: Path) -> None:
    """Seven of twelve tasks lost: worse, by as much as the tables say."""
    runs.make_run(path, BASE_BETTER)
    found = only(path, "run-1")
    low, high = paired_tests.tango_interval(0, 7, 12, 0.95)
    assert found.difference == Estimate(pytest.approx(-7 / 12), low, high)
    assert found.test == Significance(estimates.MCNEMAR, pytest.approx(2 / 2**7), None)
    assert found.decision.verdict == "worse"
    expected = f"treat is worse than base: 58.3 points lower (95 % CI {100 * low:.1f} to"
    assert found.decision.text.startswith(expected)
    assert [row.task_id for row in found.by_task if row.a != row.b] == [f"t0{n}" for n in range(7)]


def test_no_difference_says_what_could_have_been_seen(path: Path) -> None:
    """The smallest detectable difference stands beside what was not shown."""
    runs.make_run(path, {"base": "PPPPPPPPPPPF", "treat": "FPPPPPPPPPPF"})
    found = only(path, "run-1")
    assert found.decision.verdict == "not_shown"
    assert found.detectable is not None
    least = f"smaller than about {100 * (found.detectable.difference or 0):.1f} points"
    assert f"With 12 tasks, a difference {least} would have been missed" in found.decision.text
    runs.make_run(path, {"base": "PPP", "treat": "FFF"}, "small")
    assert "no difference could have been shown" in only(path, "small").decision.text


def test_without_discordant_pairs_their_share_is_supposed(path: Path) -> None:
    """No pair differs: the interval still has a width, and power supposes that some would."""
    runs.make_run(path, {"base": "PPPPPPPPPPFF", "treat": "PPPPPPPPPPFF"})
    found = only(path, "run-1")
    assert found.detectable is not None
    assert found.detectable.assumed
    assert found.detectable.discordant == found.detectable.difference
    runs.make_run(path, {"base": "PF" * 20, "treat": "FP" * 10 + "PF" * 10}, "half")
    half = only(path, "half").detectable
    assert half is not None
    assert (half.discordant, half.assumed) == (0.5, False)
    assert found.difference is not None
    assert (found.difference.high or 0) > 0.2


def test_replications_are_clustered_in_their_tasks(path: Path) -> None:
    """Six tasks three times over are not eighteen: the test and the interval are of tasks."""
    runs.make_run(path, {"base": ["PPP"] * 5 + ["PPF"], "treat": ["FFF"] * 4 + ["PPP", "PPF"]})
    found = only(path, "run-1")
    assert (found.tasks, found.pairs, found.replications) == (6, 18, 3)
    assert found.test is not None
    assert found.test.name == estimates.SIGN_FLIP
    assert found.test.p == pytest.approx(2 / 2**4)  # Four tasks differ, all one way.
    single = paired_tests.tango_interval(0, 4, 6, 0.95)
    assert found.difference is not None
    assert (found.difference.low, found.difference.high) == pytest.approx(single)
    assert [(p.k, p.tasks) for p in found.b.pass_at] == [(3, 6)]
    assert found.b.pass_at[0].any is not None
    assert found.b.pass_at[0].any.value == pytest.approx(2 / 6)
    assert found.b.pass_at[0].all is not None
    assert found.b.pass_at[0].all.value == pytest.approx(1 / 6)


def test_chosen_k_are_reported(path: Path) -> None:
    """pass@k and pass^k for the k asked for."""
    runs.make_run(path, {"base": ["PF", "PP"], "treat": ["PF", "FF"]})
    found = only(path, "run-1", pass_at=(1, 2, 3))
    assert [(p.k, p.tasks) for p in found.a.pass_at] == [(1, 2), (2, 2), (3, 0)]
    assert found.a.pass_at[0].any is not None
    assert found.a.pass_at[0].any.value == pytest.approx(0.75)


def test_any_numeric_metric(path: Path) -> None:
    """Compared by its own values, whatever the verdict, but for trials of a broken laboratory."""
    letters = "PFPFaPPFi"
    base = [[float(n)] for n in range(9)]
    treat = [[n + 2.0 + n % 3] for n in range(9)]
    numbers = {"base": base, "treat": treat}
    runs.make_run(path, {"base": letters, "treat": letters}, numbers=numbers)
    found = only(path, "run-1", metric="tokens")
    assert left_out(found) == {("both", "infra_error"): 1}
    differences = [t[0] - b[0] for b, t in zip(base[:8], treat[:8], strict=True)]
    assert found.difference == paired_tests.mean_difference(differences, 0.95, 0)
    assert found.effect is not None
    mean = math.fsum(differences) / 8
    deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / 7)
    assert found.effect.value == pytest.approx(mean / deviation)
    assert found.decision.verdict == "higher"
    assert only(path, "run-1", metric="tokens", lower_is_better=True).decision.verdict == "worse"
    assert only(path, "run-1", metric="tokens", lower_is_better=False).decision.verdict == "better"


def test_huge_numbers_are_compared_or_left_out(path: Path) -> None:
    """Squares that no double holds harm nothing; sums that none holds are never begun."""
    numbers = {"base": [[1e280]] * 8 + [[1e308]], "treat": [[n * 1e279] for n in range(9)]}
    runs.make_run(path, {"base": "P" * 9, "treat": "P" * 9}, numbers=numbers)
    found = only(path, "run-1", metric="tokens")
    assert left_out(found) == {("a", "number_too_large"): 1}
    assert found.decision.verdict == "lower"
    assert found.effect is not None
    assert found.effect.value == pytest.approx(-6.5 / 6**0.5)  # Mean and deviation of 3 to 10.


def test_the_primary_metric_by_its_name(path: Path) -> None:
    """A score's own number; a grade_error's is kept, not counted."""
    runs.make_run(path, {"base": "PPFG", "treat": "PFFP"})
    found = only(path, "run-1", metric="resolved")
    assert found.difference is not None
    assert found.difference.value == pytest.approx(-1 / 3)
    assert left_out(found) == {("a", "no_value"): 1}
    with pytest.raises(InvalidInput, match="there is pass_rate, resolved"):
        compare(path, "run-1", metric="tokens")


def test_swapping_the_sides_negates_the_difference(path: Path) -> None:
    """Whatever there is to compare, A against B is B against A turned round."""
    letters = {"base": ["PPF", "PFa", "FFF", "PPi", "PPP", "FPP"] * 3, "treat": ["FPP", "PPE"] * 9}
    numbers = {v: [[float(7 * n % 5 + r) for r in range(3)] for n in range(18)] for v in letters}
    numbers["treat"] = [[3 * n**0.5 for n in row] for row in numbers["treat"]]
    runs.make_run(path, letters, numbers=numbers)
    for metric in ("pass_rate", "tokens"):
        one = only(path, "run-1", "base", "treat", metric=metric)
        other = only(path, "run-1", "treat", "base", metric=metric)
        assert one.difference is not None
        assert other.difference is not None
        assert one.difference.value == pytest.approx(-other.difference.value)
        assert one.difference.low == pytest.approx(-(other.difference.high or 0))
        assert one.difference.high == pytest.approx(-(other.difference.low or 0))
        assert one.test is not None
        assert other.test is not None
        assert one.test.p == pytest.approx(other.test.p)
        assert one.a == other.b
        assert one.detectable is not None
        assert other.detectable is not None
        assert one.detectable.difference == pytest.approx(other.detectable.difference)


def test_the_same_seed_gives_the_same_document(path: Path) -> None:
    """Random draws are fixed; another seed draws others."""
    numbers = {"base": [[float(n * n % 17)] for n in range(20)], "treat": [[8.5]] * 20}
    runs.make_run(path, {"base": "P" * 20, "treat": "P" * 20}, numbers=numbers)
    one, again, other = (
        compare(path, "run-1", metric="tokens", seed=seed).as_json() for seed in (1, 1, 2)
    )
    assert one == again
    assert {**one, "seed": 2} != other


@pytest.mark.parametrize(
    ("low", "p", "verdict", "words"),
    [
        (0.01, 0.01, "better", "b is better than a: 20.0 points higher"),
        (0.01, 0.07, "not_shown", "leaves out 0 but the test is not sure enough"),
        (-0.01, 0.01, "not_shown", "the interval holds 0"),
        (-0.01, 0.07, "not_shown", "With 30 tasks"),
    ],
)
def test_interval_and_test_must_agree(low: float, p: float, verdict: str, words: str) -> None:
    """Where one says yes and the other no, nothing is shown, and that is said."""
    found = Compared(
        a=SideReport("r", "a", None),
        b=SideReport("r", "b", None),
        tasks=30,
        pairs=30,
        replications=1,
        counts=None,
        difference=Estimate(0.2, low, 0.4),
        test=Significance("a test", 0.001, p),
        effect=None,
        detectable=Detectable(0.3, 0.8, 0.2, assumed=False),
        left_out=(),
        by_task=(),
    )
    decision = decide(found, CompareOptions())
    assert decision.verdict == verdict
    assert words in decision.text


# -- gates


def test_gates_go_by_the_interval(path: Path) -> None:
    """Shown to be worse by more than X closes one; not shown to be less worse closes the other."""
    runs.make_run(path, BASE_BETTER)
    found = only(path, "run-1").difference
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    expected = {
        -found.high - 0.01: (False, False),  # The whole interval is beyond such a loss.
        -found.high + 0.01: (True, False),  # It holds it.
        -found.low + 0.01: (True, True),  # It is all on this side.
    }
    for limit, passed in expected.items():
        gates = compare(path, "run-1", fail_if_worse=limit, require_not_worse=limit).gates
        assert tuple(gate.passed for gate in gates) == passed
    gates = compare(path, "run-1", fail_if_worse=0.0, confidence=0.999).gates
    assert [gate.passed for gate in gates] == [True]


def test_gates_of_a_metric_know_what_is_worse(path: Path) -> None:
    """More tokens are worse where lower is better, and no gate is judged without knowing."""
    numbers = {"base": [[float(n)] for n in range(8)], "treat": [[2.5 * n + 5] for n in range(8)]}
    runs.make_run(path, {"base": "P" * 8, "treat": "P" * 8}, numbers=numbers)
    for lower_is_better in (True, False):
        (gate,) = compare(
            path, "run-1", metric="tokens", fail_if_worse=1.0, lower_is_better=lower_is_better
        ).gates
        assert gate.passed is not lower_is_better
    with pytest.raises(InvalidInput, match="--lower-is-better or --higher-is-better"):
        compare(path, "run-1", metric="tokens", fail_if_worse=1.0)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"confidence": 1.0}, "--confidence"),
        ({"confidence": 0.2}, "--confidence"),
        ({"confidence": math.nan}, "--confidence"),
        ({"fail_if_worse": 2.0}, "--fail-if-worse"),
        ({"require_not_worse": math.nan}, "--require-not-worse"),
        ({"pass_at": (0,)}, "--pass-at"),
        ({"pass_at": (2,), "metric": "tokens"}, "--pass-at"),
        ({"lower_is_better": True}, "--lower-is-better"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: dict[str, Any], words: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInput, match=words):
        CompareOptions(**option).check()
