"""Correct tests and intervals at planned looks by O'Brien and Fleming's boundary.

The statistic times the square root of the information must exceed the same number at every look
(1979, Biometrics 35:549–556). If information grows with trials, this is a Brownian motion (Jennison
and Turnbull 2000, Group Sequential Methods). Otherwise the chances of all looks are added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labledger.compare.statistics.samples import Array

_PANEL = 16
"""The points of a panel at which the density of the motion is computed (Gauss)."""
_FEWEST_PANELS, _MOST_PANELS = 8, 100
"""The fewest and most panels. Within these limits, a panel is as wide as the deviation of the
shortest step."""
_FAR = 8.0
"""Beyond this many standard deviations, the looks' chances are added up; both methods agree."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The boundary of planned looks, at one of them.

    Attributes:
        fractions: The information at each look as a share of the last one's; the last is 1.
        number: The number of this look, from 1.
        is_joint: Whether the looks' statistics follow a Brownian motion. Then their correlations
            are at least as high as `fractions` imply.
    """

    fractions: tuple[float, ...]
    number: int
    is_joint: bool = True

    @property
    def fraction(self) -> float:
        return self.fractions[self.number - 1]

    def level(self, alpha: float) -> float:
        """Return the level for the usual test and interval at this look.

        `alpha` is the level of all looks together.
        """
        return _tail(_edge(self.fractions, self.is_joint, alpha) / math.sqrt(self.fraction))

    def p(self, p: float) -> float:
        """Return the p value of all looks for the p value of the usual test at this look.

        The result is the smallest level at which the boundary would have been crossed (Jennison and
        Turnbull 2000, chapter 9).
        """
        from scipy import special

        if p <= 0:
            return 0.0
        edge = -float(special.ndtri(p / 2)) * math.sqrt(self.fraction)
        return _crossing(self.fractions, self.is_joint, edge)

    def power(self, shift: float, alpha: float) -> float:
        """Return the probability of showing a difference at this look or an earlier one.

        `shift` is the difference in standard errors of the last look.
        """
        edge = _edge(self.fractions, self.is_joint, alpha)
        return _exit_chance(self.fractions[: self.number], edge, shift)


@lru_cache(maxsize=1024)
def _edge(fractions: tuple[float, ...], is_joint: bool, alpha: float) -> float:
    """Return the absolute value that the motion exceeds at some look with probability `alpha`."""
    from scipy import optimize

    def beyond(edge: float) -> float:
        return math.log(_crossing(fractions, is_joint, edge) / alpha)

    # The last look alone has at most the chance `alpha`, and all together at most their sum.
    low, high = (_quantile(alpha / share) for share in (1, len(fractions)))
    if beyond(low) <= 0:
        return low
    return float(optimize.brentq(beyond, low, high * (1 + 1e-9), xtol=1e-12, rtol=1e-12))


def _crossing(fractions: tuple[float, ...], is_joint: bool, edge: float) -> float:
    """Return the probability that some look's statistic crosses the boundary if nothing differs.

    `edge` is the absolute value that the motion must reach.
    """
    if is_joint and edge < _FAR:
        return _exit_chance(fractions, edge)
    return min(1.0, math.fsum(_tail(edge / math.sqrt(share)) for share in fractions))


def _quantile(alpha: float) -> float:
    from scipy import special

    return -float(special.ndtri(alpha / 2))


def _tail(z: float) -> float:
    from scipy import special

    return 2 * float(special.ndtr(-z))


@lru_cache(maxsize=128)
def _rule(panels: int) -> tuple[Array, Array]:
    """Return the points and weights of an integral from -1 to 1 over equal panels."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_PANEL)
    middles = (2 * np.arange(panels) + 1) / panels - 1
    points = (middles[:, np.newaxis] + nodes / panels).ravel()
    return points, np.tile(weights / panels, panels)


@lru_cache(maxsize=4096)
def _exit_chance(fractions: tuple[float, ...], edge: float, drift: float = 0.0) -> float:
    """Return the probability that a Brownian motion is beyond ± `edge` at one of the times.

    The density of the motions that are still inside is integrated from one time to the next
    (Armitage, McPherson and Rowe 1969, JRSS A 132:235–244).
    """
    import numpy as np
    from scipy import special

    if edge <= 0:
        return 1.0
    shortest = math.sqrt(min(b - a for a, b in pairwise((0.0, *fractions))))
    panels = max(_FEWEST_PANELS, min(_MOST_PANELS, math.ceil(2 * min(edge, _FAR) / shortest)))
    nodes, weights = _rule(panels)
    points, mass, before, outside = np.zeros(1), np.ones(1), 0.0, 0.0
    for time in fractions:
        spread, centre = math.sqrt(time - before), points + drift * (time - before)
        beyond = special.ndtr((-edge - centre) / spread) + special.ndtr((centre - edge) / spread)
        outside += float(mass @ beyond)
        # The part of the strip where the density is not negligible.
        low = max(-edge, drift * time - _FAR * math.sqrt(time))
        high = min(edge, drift * time + _FAR * math.sqrt(time))
        if high <= low:
            break
        new = (low + high) / 2 + (high - low) / 2 * nodes
        steps = (new[:, np.newaxis] - centre) / spread
        density = np.exp(-0.5 * steps * steps) @ mass / (spread * math.sqrt(2 * math.pi))
        points, mass, before = new, density * weights * (high - low) / 2, time
    return min(1.0, outside)
