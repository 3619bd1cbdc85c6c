"""Error and power of tests for two pass rates, enumerated over all outcomes of one replication.

    PYTHONPATH=tests python -m bench.comparison_error

Prints, for each number of tasks and each level, how often a true null is rejected at most (over
shares of differing pairs from 2 % to 60 %), as a multiple of the level, and the mean power at three
alternatives: of the score test that `compare` uses, of Tango's without its factor n/(n - 1), of
McNemar's mid-p test and of his exact test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special, stats

SIZES = (10, 15, 20, 30, 50, 100, 200)
LEVELS = (0.05, 0.0125, 0.0025)
SHARES = np.linspace(0.02, 0.6, 30)
ALTERNATIVES = ((0.4, 0.1), (0.25, 0.05), (0.15, 0.05))

Array = np.ndarray[Any, Any]


def main() -> None:
    """Print a line for each level and number of tasks."""
    for level in LEVELS:
        for size in SIZES:
            gained, lost = _outcomes(size)
            cells = []
            for name, rejected in _tests(gained, lost, size, level).items():
                errors = (_chances(gained, lost, size, s / 2, s / 2)[rejected] for s in SHARES)
                error = max(chances.sum() for chances in errors)
                powers = [_chances(gained, lost, size, *a)[rejected].sum() for a in ALTERNATIVES]
                cells.append(f"{name} {error / level:.2f} {np.mean(powers):.3f}")
            print(f"level {level:<7} tasks {size:<4}", " | ".join(cells), flush=True)


def _outcomes(size: int) -> tuple[Array, Array]:
    """How many tasks only B and only A passed, in each outcome there is."""
    gained, lost = np.meshgrid(np.arange(size + 1), np.arange(size + 1), indexing="ij")
    possible = gained + lost <= size
    return gained[possible], lost[possible]


def _tests(gained: Array, lost: Array, size: int, level: float) -> Mapping[str, Array]:
    """Which outcomes each test rejects."""
    differing, fewer = gained + lost, np.minimum(gained, lost)
    z = np.abs(gained - lost) / np.sqrt(np.maximum(differing, 1))
    critical = special.ndtri(1 - level / 2)
    twice = 2 * stats.binom.cdf(fewer, differing, 0.5)
    middle = twice - stats.binom.pmf(fewer, differing, 0.5)
    return {
        "score": z * np.sqrt((size - 1) / size) > critical,
        "Tango": z > critical,
        "mid-p": np.where(gained == lost, 1, middle) < level,
        "exact": np.minimum(1, twice) < level,
    }


def _chances(gained: Array, lost: Array, size: int, up: float, down: float) -> Array:
    rest = size - gained - lost
    ways = special.gammaln([size + 1]) - special.gammaln(gained + 1) - special.gammaln(lost + 1)
    ways = ways - special.gammaln(rest + 1)
    return np.asarray(
        np.exp(ways + gained * np.log(up) + lost * np.log(down) + rest * np.log1p(-up - down))
    )


if __name__ == "__main__":
    main()
