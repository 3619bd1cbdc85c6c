"""Which cases of a test `scripts/test` runs, and which `scripts/test --all` alone.

CONTRIBUTING.md says what decides between the two. A test without the marker is in both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

thorough = pytest.mark.thorough
"""Marks what `scripts/test --all` alone runs: a whole test, a module, or a case."""

long = pytest.mark.long
"""Marks a test or a module that takes much of a minute: `conftest` lets it begin before others."""


def tiered(cases: Iterable[Any], *, default: Collection[Any]) -> list[Any]:
    """Return the cases of a parametrized test, all of them marked thorough but those in `default`.

    A case that is a tuple has one value for each name. With two parametrizations, the default
    tier has the combinations of what is default in both.

    >>> @pytest.mark.parametrize("image", tiered(SHELLS, default=[BUSYBOX]))
    """
    listed = list(cases)
    unknown = [case for case in default if case not in listed]
    assert not unknown, f"{unknown} is among no cases"
    return [_param(case, case in default) for case in listed]


def _param(case: Any, is_default: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=() if is_default else (thorough,))
