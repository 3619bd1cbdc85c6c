"""The libraries that comparing needs, which an installation may lack; loaded when first used."""

from __future__ import annotations

from importlib.util import find_spec

from labledger.errors import ExtraMissing

_NEEDED = ("numpy", "scipy", "statsmodels")


def require() -> None:
    """Raise `ExtraMissing` where a library of the extra `analysis` is not installed."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        raise ExtraMissing(
            f"comparing needs {' and '.join(absent)}, which this Python does not have",
            hint="pip install 'labledger[analysis]' (in a checkout: pip install -e '.[analysis]')",
        )
