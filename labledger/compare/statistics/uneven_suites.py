"""Compare the pass rates of fixed tasks that have very different numbers of counted trials.

The stratified test (`paired_rates.of_suite`) assumes under its null hypothesis that both sides have
the same rate on every task. It errs if tasks differ in opposite directions and in their trials.
This test only assumes a mean difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labledger.compare.statistics.samples import (
    Estimate,
    Groups,
    Inference,
    bisected,
    mean,
    quantile,
    task_differences,
    task_means,
)

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array

MEAN_SCORE = "score test of the mean over tasks"

_STEPS = 80
_LARGEST_LOG = 40.0
"""The logarithm of the largest multiplier, at which rates are 0 or 1 except for e⁻⁴⁰."""
_NEAR_0 = 1e-12


def are_nearly_even(a: Groups, b: Groups) -> bool:
    """Return whether the stratified test is valid for the numbers of trials of all tasks and sides.

    It is valid if the numbers are equal, or if all are at least 2 and none is more than twice
    another.
    """
    counts = {len(group) for groups in (a, b) for group in groups}
    return len(counts) == 1 or min(counts) >= max(2, max(counts) / 2)


def of_suite(a: Groups, b: Groups, confidence: float) -> Inference:
    """Estimate the difference of pass rates, B minus A, for these fixed tasks.

    The score statistic is the difference minus the hypothetical difference, over its standard error
    at the likeliest rates with the hypothetical mean difference (Owen 1988, Biometrika 75:237–249,
    for the weights). The interval holds the differences that the test does not reject.

    A side's single trials of tasks are pooled as if they had one rate. Their sum varies no less
    than a sum of trials with different rates (Hoeffding 1956, Annals of Mathematical Statistics
    27:713–721). Each variance is multiplied by n/(n − 1). Half of a usual step is subtracted from
    the distance, because the difference of few trials has few possible values.
    """
    from scipy import special

    value = mean(task_differences(a, b))
    higher, lower = _Cells.of(a, b), _Cells.of(b, a)
    low, high = -lower.bound(confidence), higher.bound(confidence)
    p = 1.0
    if abs(value) > _NEAR_0:
        # The null hypothesis is the difference 0, which is above the observed one or below it.
        towards_0 = higher if value < 0 else lower
        p = min(1.0, 2 * float(special.ndtr(-towards_0.score_of(0.0))))
    return Inference(Estimate(value, low, high), p, MEAN_SCORE)


@dataclass(frozen=True, slots=True)
class _Cells:
    """The trials of both sides, one cell for each task and side.

    A cell's rate is the share that would have to fall for a larger difference: passes on side A,
    failures on side B.
    """

    rates: Array
    trials: Array
    tasks: Array
    """The number of tasks in each cell."""

    @classmethod
    def of(cls, a: Groups, b: Groups) -> _Cells:
        """Return the cells for differences, B minus A, that are larger than the observed one."""
        import numpy as np

        failed_b = [[1 - x for x in group] for group in b]
        cells = [*_side_cells(a), *_side_cells(failed_b)]
        return cls(*np.array(cells, dtype=np.float64).T)

    def bound(self, confidence: float) -> float:
        """Return the largest difference that is not rejected."""
        z = quantile(confidence)
        if self._score(_LARGEST_LOG) < z:
            return 1.0
        logs = bisected(lambda log: self._score(log) >= z, -_LARGEST_LOG, _LARGEST_LOG, _STEPS)
        return min(1.0, self._difference(self._likeliest(logs[0])))

    def score_of(self, difference: float) -> float:
        """Return the distance to a larger hypothetical difference in standard errors."""

        def is_past(log: float) -> bool:
            return self._difference(self._likeliest(log)) > difference

        return self._score(bisected(is_past, -_LARGEST_LOG, _LARGEST_LOG, _STEPS)[0])

    def _likeliest(self, log_multiplier: float) -> Array:
        """Return the likeliest rates for the difference that belongs to a Lagrange multiplier.

        Each rate p solves rate − p = m p (1 − p) with m = multiplier × tasks / trials.
        """
        import numpy as np

        m = math.exp(log_multiplier) * self.tasks / self.trials
        root = np.sqrt(np.maximum((1 + m) ** 2 - 4 * m * self.rates, 0.0))
        return np.asarray(2 * self.rates / (1 + m + root))

    def _difference(self, rates: Array) -> float:
        """Return the mean over the tasks of B minus A."""
        return 1 - 2 * float(self.tasks @ rates) / float(self.tasks.sum())

    def _score(self, log_multiplier: float) -> float:
        import numpy as np

        rates = self._likeliest(log_multiplier)
        unbiased = np.where(self.trials > 1, self.trials / np.maximum(self.trials - 1, 1), 2.0)
        step = self.tasks / self.trials
        variances = self.tasks * step * rates * (1 - rates) * unbiased
        variance = float(variances.sum())
        distance = float(self.tasks @ (self.rates - rates))
        if variance <= 0:
            return 0.0 if distance <= 0 else math.inf
        half_step = float(variances @ step) / variance / 2
        return max(0.0, distance - half_step) / math.sqrt(variance)


def _side_cells(groups: Groups) -> Iterator[tuple[float, int, int]]:
    """Yield the rate, the trials and the number of tasks of each cell of a side."""
    only: Sequence[float] = [group[0] for group in groups if len(group) == 1]
    if only:
        yield math.fsum(only) / len(only), len(only), len(only)
    for rate, group in zip(task_means(groups), groups, strict=True):
        if len(group) > 1:
            yield rate, len(group), 1
