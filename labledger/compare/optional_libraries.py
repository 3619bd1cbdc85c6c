"""The libraries of the extras, which an installation may lack; loaded when first used."""

from __future__ import annotations

from importlib.util import find_spec

from labledger.errors import ExtraMissing

_NEEDED = ("numpy", "scipy")


def require() -> None:
    """Raise `ExtraMissing` where a library that comparing needs is not installed."""
    require_for("comparing", "analysis", *_NEEDED)


def require_for(what: str, extra: str, *needed: str) -> None:
    """Raise `ExtraMissing` where one of the libraries that `what` needs is not installed."""
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        raise ExtraMissing(
            f"{what} needs {' and '.join(absent)}, which this Python does not have",
            hint=f"pip install 'labledger[{extra}]' (in a checkout: pip install -e '.[{extra}]')",
        )
