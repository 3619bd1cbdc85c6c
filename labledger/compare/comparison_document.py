"""What a comparison found: a plain document, `comparison_v1`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from labledger.compare.options import PASS_RATE
from labledger.compare.pairs import Side
from labledger.compare.rates import Estimate, PassAt
from labledger.ledger.database.model import Graded
from labledger.records import JsonObject, json_schemas

SCHEMA = "comparison_v1"

SAME_TRIALS = "the same on both sides; only how they were graded differs"
"""What to say of two gradings of one run."""


EFFECTS = {
    "odds_ratio": "odds ratio of the pairs that differ",
    "d_z": "standardized difference (d_z)",
}
"""What an `Effect` is called."""


@dataclass(frozen=True, slots=True)
class SideGrading:
    """Who judged the trials of a side."""

    run_id: str
    """The run whose agents ran."""
    generation: int
    generations: int
    """How many gradings the run has, complete or not."""
    grader_digest: str | None
    """None where an older labledger did not write it."""

    @classmethod
    def of(cls, graded: Graded) -> Self:
        grading = graded.grading
        return cls(grading.root_id, grading.generation, graded.generations, grading.grader_digest)


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side, over the pairs alone."""

    run_id: str
    """As it was asked for: a run, of which counts what counts, or one of its gradings."""
    variant_id: str
    mean: Estimate | None
    """The pass rate, or the metric's mean: over tasks, of each task's mean."""
    pass_at: tuple[PassAt, ...] = ()
    grading: SideGrading | None = None
    """Always there once the comparison is made."""
    trials: int = 0
    """The trials that count, of the tasks compared."""

    @property
    def side(self) -> Side:
        return Side(self.run_id, self.variant_id)


@dataclass(frozen=True, slots=True)
class Counts:
    """Tasks by who passed, where each was tried once on each side."""

    both: int
    only_a: int
    only_b: int
    neither: int


@dataclass(frozen=True, slots=True)
class Significance:
    """A test that there is no difference; the difference's interval is its inversion."""

    name: str
    p: float
    p_adjusted: float | None = None
    """Corrected by Bonferroni's method for the number of comparisons; None where there is one."""
    p_holm: None = None
    """Always None. Earlier versions corrected by Holm's method, which has no intervals that agree
    with it (Strassburger and Bretz 2008, Statistics in Medicine 27:4914–4927)."""

    @property
    def p_decisive(self) -> float:
        return self.p if self.p_adjusted is None else self.p_adjusted


@dataclass(frozen=True, slots=True)
class Effect:
    """`odds_ratio`: pairs that only B passed over those that only A passed. `d_z`: Cohen's."""

    name: str
    value: float | None
    """None where it is not a number: all pairs that differ go one way, or nothing varies."""


@dataclass(frozen=True, slots=True)
class Detectable:
    """The smallest difference that so many tasks would have shown, as likely as `power` says."""

    difference: float | None
    """None: none, however large, or it cannot be said."""
    power: float
    discordant: float | None
    """The share of pairs supposed to differ; for pass rates."""
    assumed: bool
    """Whether that share is more than was seen, as so large a difference needs."""


@dataclass(frozen=True, slots=True)
class LeftOutCount:
    side: str
    """`a`, `b` or `both`."""
    reason: str
    pairs: int


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What another way to count errors would have shown."""

    errors: str
    pairs: int
    difference: Estimate | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task: how many pairs, the means of both sides, and why pairs were left out."""

    task_id: str
    pairs: int
    a: float | None
    b: float | None
    left_out: tuple[str, ...]
    """Distinct reasons, each with its side, such as ``b: infra_error``."""


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: str
    """`better`, `worse`, `higher`, `lower` (of B), `not_shown`, or `nothing_paired`."""
    text: str
    """A plain sentence or two."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A against B. Differences are B less A."""

    a: SideReport
    b: SideReport
    tasks: int
    """Tasks with at least one pair."""
    pairs: int
    """Of each task as many as the side with fewer trials has."""
    replications: int
    """Pairs of the task that has most."""
    counts: Counts | None
    """None for metrics."""
    difference: Estimate | None
    """None where nothing is paired; so are `test` and `effect` and `detectable`. Its interval is
    that of all comparisons of the family together."""
    test: Significance | None
    """None also for a suite that was tried once, which tells nothing of luck."""
    effect: Effect | None
    detectable: Detectable | None
    left_out: tuple[LeftOutCount, ...]
    by_task: tuple[TaskRow, ...]
    same_trials: bool = False
    """Whether both sides are gradings of one run's trials: then the graders alone differ."""
    sensitivity: tuple[Sensitivity, ...] = ()
    warnings: tuple[str, ...] = ()
    clusters: int | None = None
    """How many clusters the tasks are in, where clusters are the sample."""
    decision: Decision = Decision("nothing_paired", "")
    """Made once every comparison of the family is there, for the correction."""

    @property
    def labels(self) -> tuple[str, str]:
        """What to call A and B: the variants of one run, else RUN:VARIANT."""
        if self.a.run_id == self.b.run_id:
            return self.a.variant_id, self.b.variant_id
        return str(self.a.side), str(self.b.side)


@dataclass(frozen=True, slots=True)
class GateResult:
    option: str
    limit: float
    b: str
    """The side that was tested."""
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every comparison that was asked for."""

    metric: str
    lower_is_better: bool | None
    confidence: float
    errors: str
    seed: int
    comparisons: tuple[Compared, ...]
    gates: tuple[GateResult, ...]
    estimand: str
    """`tasks` or `suite`; see `Estimand`."""
    cluster: str | None
    """The field of the tasks' rows whose values were taken as the sample; None for tasks."""
    family: int
    """For how many comparisons intervals, p values and gates are corrected."""

    @property
    def is_rate(self) -> bool:
        return self.metric == PASS_RATE

    def as_json(self) -> JsonObject:
        """The document as `comparison_v1` has it."""
        document = {"schema_version": SCHEMA, **_plain(asdict(self))}
        json_schemas.require_valid(document, SCHEMA)
        return document


def _plain(value: JsonObject) -> JsonObject:
    """With lists for tuples, as JSON has them."""

    def lists(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: lists(item) for key, item in inner.items()}
        return [lists(item) for item in inner] if isinstance(inner, tuple | list) else inner

    return {key: lists(item) for key, item in value.items()}


def effect_value(effect: Effect) -> str:
    """An effect as a person reads it."""
    if effect.value is not None:
        return f"{effect.value:.4g}"
    return "none, for no pair goes the other way" if effect.name == "odds_ratio" else "none"


def left_out(slots: int, side: str, reason: str, a: str, b: str) -> str:
    """Slots that no trial was taken of, such as ``2 trials of treat (infra_error)``."""
    whose = {"a": f"of {a}", "b": f"of {b}", "both": "of each"}[side]
    return f"{slots:,} {'trial' if slots == 1 else 'trials'} {whose} ({reason})"
