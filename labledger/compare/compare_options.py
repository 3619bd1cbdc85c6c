"""The options of a comparison: metric, confidence, estimand, what counts as a failure, gates.

`CompareOptions` is part of the public API; `check` reports every invalid option at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

from labledger.errors import InvalidInput, Parameter, Problem

PASS_RATE = "pass_rate"  # noqa: S105
"""The metric that is computed from verdicts."""


_Choice = TypeVar("_Choice", bound=StrEnum)


class Gate(StrEnum):
    """A condition that a comparison must meet, named by the parameter that sets its limit."""

    FAIL_IF_WORSE = "fail_if_worse"
    REQUIRE_NOT_WORSE = "require_not_worse"
    REQUIRE_EQUIVALENT = "require_equivalent"

    @property
    def stored_name(self) -> str:
        """The name of the gate in `comparison_v1`: the option of the command line."""
        return f"--{self.value.replace('_', '-')}"


_EQUIVALENCE = ("equivalent_within", Gate.REQUIRE_EQUIVALENT)


def _named(choices: type[_Choice], parameter: str, word: str) -> _Choice:
    try:
        return choices(word)
    except ValueError:
        message = f"found {word!r}; expected one of {', '.join(choices)}"
        problem = Problem(Parameter(parameter), message)
        raise InvalidInput("the options of the comparison", [problem]) from None


class ErrorCounting(StrEnum):
    """How slots without a counted verdict count in pass rates."""

    AS_FAILURES = "as-failures"
    """A verdict counts however the agent ended. A trial counts as not passed if its verdict is
    `error`, or if it has no verdict and its agent failed or broke its grader. Otherwise an agent
    could improve its rate by crashing. Failures of the lab (`infra_error`, `setup_error`, other
    `grade_error`) are left out."""
    STRICT = "strict"
    """Like `as-failures`, but an agent that failed or timed out counts as not passed, whatever the
    verdict."""
    LEFT_OUT = "left-out"
    """Only `pass`, `fail` and `missing` count."""
    ALL_AS_FAILURES = "all-as-failures"
    """Every trial that ran and did not pass counts as not passed, whatever the cause. Harbor and
    SWE-bench count this way."""

    @classmethod
    def named(cls, word: str) -> Self:
        """Return the choice with this name. Raises `InvalidInput`."""
        return _named(cls, "errors", word)


class Estimand(StrEnum):
    """The quantity that a comparison estimates, and its sample."""

    TASKS = "tasks"
    """Tasks like these. Would B do better on other tasks? The compared tasks are the sample.
    Replications make a task's result more precise, but do not count as tasks."""
    SUITE = "suite"
    """This fixed suite of tasks. Is B better on these tasks, or is the difference chance? The
    replications are the sample, so it needs several. This is the usual question of a regression
    test."""

    @classmethod
    def named(cls, word: str) -> Self:
        """Return the estimand with this name. Raises `InvalidInput`."""
        return _named(cls, "estimand", word)

    @property
    def words(self) -> str:
        """The name of the estimand in a sentence."""
        return "tasks like these" if self is Estimand.TASKS else "this suite"


class Validity(StrEnum):
    """The looks at growing runs for which an interval and its test hold."""

    FIXED_SAMPLE = "fixed_sample"
    """For one look, at runs that are finished and were never extended."""
    ANYTIME = "anytime"
    """For all looks together: a confidence sequence."""
    NONE = "none"
    """For no look, so there is neither an interval nor a test. The runs are not finished, were
    looked at differently than planned, or have results that were chosen by their verdicts."""
    GROUP_SEQUENTIAL = "group_sequential"
    """For the looks that were planned before the runs began."""


def confidence_problems(confidence: float) -> list[Problem]:
    """Return a problem if the level of intervals is not valid."""
    if 0.5 <= confidence < 1:
        return []
    message = f"found {confidence:g}; expected 0.5 or more and less than 1"
    return [Problem(Parameter("confidence"), message)]


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The options of a comparison.

    Attributes:
        metric: `pass_rate`, the name of the primary metric, or the id of a metric that is a number.
        lower_is_better: Whether lower values of the metric are better. With None, higher pass rates
            are better, and the direction of any other metric is unknown.
        confidence: The level of all intervals of differences together, 0.5 or more and less than 1.
            A difference is shown if its p value, corrected for the number of comparisons, is
            below 1 minus the confidence. Then its interval does not contain 0.
        estimand: Estimate the difference for tasks like these, or for exactly these tasks.
        cluster: The field of a task's row whose values are the clusters, such as `task.repo`. None
            uses the field that the experiment names (`dataset.cluster`), if it names one.
        errors: How slots without a counted verdict count in pass rates.
        pass_at: The k of pass@k and pass^k; by default the number of replications, if more than 1.
        fail_if_worse: A gate: it is missed if B is shown to be worse than A by more than this.
        require_not_worse: A gate: it is missed unless B is shown to be at most this much worse
            than A.
        all_pairs: Compare every pair of variants or sides and rank them in tie groups, rather than
            the baseline with every treatment. Gates cannot be used with it.
        equivalent_within: Also decide whether both sides are shown to be equivalent: every value in
            the difference's interval is smaller than this, in either direction.
        require_equivalent: A gate: it is missed unless both sides are shown to be equivalent within
            this limit. It is also the limit of `equivalent_within` if that is None.

    Example:
        >>> import labledger
        >>> options = labledger.CompareOptions(metric="tokens_out", lower_is_better=True)
        >>> with labledger.open_ledger() as ledger:
        ...     comparison = ledger.compare("demo", options=options)
    """

    metric: str = PASS_RATE
    lower_is_better: bool | None = None
    confidence: float = 0.95
    estimand: Estimand = Estimand.TASKS
    cluster: str | None = None
    errors: ErrorCounting = ErrorCounting.AS_FAILURES
    pass_at: tuple[int, ...] = ()
    fail_if_worse: float | None = None
    require_not_worse: float | None = None
    all_pairs: bool = False
    equivalent_within: float | None = None
    require_equivalent: float | None = None

    def __post_init__(self) -> None:
        """Accept the text of a choice. Raises `InvalidInput` for other text."""
        object.__setattr__(self, "estimand", Estimand.named(self.estimand))
        object.__setattr__(self, "errors", ErrorCounting.named(self.errors))

    @property
    def is_rate(self) -> bool:
        """Whether pass rates are compared."""
        return self.metric == PASS_RATE

    @property
    def has_direction(self) -> bool:
        """Whether it is known which values are better."""
        return self.is_rate or self.lower_is_better is not None

    @property
    def gates(self) -> dict[Gate, float]:
        """The limit of each gate that is set."""
        limits = {gate: getattr(self, gate) for gate in Gate}
        return {gate: limit for gate, limit in limits.items() if limit is not None}

    @property
    def equivalence_limit(self) -> float | None:
        """The difference within which sides count as equivalent; None to decide no equivalence."""
        if self.equivalent_within is not None:
            return self.equivalent_within
        return self.require_equivalent

    def check(self) -> None:
        """Raise `InvalidInput` with every option that is not valid."""
        if problems := self.problems():
            raise InvalidInput("the options of the comparison", problems)

    def problems(self) -> list[Problem]:
        """Return a problem for each option that is not valid."""
        return [*confidence_problems(self.confidence), *self._problems()]

    def _problems(self) -> Iterator[Problem]:
        for k in self.pass_at:
            if k < 1:
                yield Problem(Parameter("pass_at"), f"found {k}; expected 1 or more")
        if self.pass_at and not self.is_rate:
            yield Problem(Parameter("pass_at"), "is for pass rates, not for another `metric=`")
        if self.is_rate and self.lower_is_better:
            yield Problem(Parameter("lower_is_better"), "a pass rate is better when higher")
        for gate in self.gates if self.all_pairs else ():
            message = "is for a baseline and its treatments, not for `all_pairs=True`"
            yield Problem(Parameter(gate), message)
        for gate, limit in self.gates.items():
            yield from self._limit_problems(gate, limit)
            if gate is not Gate.REQUIRE_EQUIVALENT and not self.has_direction:
                message = f"it is not known which values of {self.metric} are worse"
                hint = "add `lower_is_better=True` or `lower_is_better=False`"
                yield Problem(Parameter(gate), message, hint=hint)
        if self.equivalent_within is not None:
            yield from self._limit_problems("equivalent_within", self.equivalent_within)

    def _limit_problems(self, parameter: str, limit: float) -> Iterator[Problem]:
        if parameter in _EQUIVALENCE and limit == 0:
            message = "found 0; no sample can show that two sides do not differ at all"
            hint = "name the smallest difference that matters"
            yield Problem(Parameter(parameter), message, hint=hint)
        elif not (math.isfinite(limit) and limit >= 0 and (limit <= 1 or not self.is_rate)):
            expected = "a share from 0 to 1, such as 0.02" if self.is_rate else "0 or more"
            yield Problem(Parameter(parameter), f"found {limit:g}; expected {expected}")
