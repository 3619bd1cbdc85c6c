"""Check for the libraries of optional extras, which an installation may lack.

Call such a check before the work begins, and import the library when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from labledger.errors import ExtraMissing

_DISTRIBUTIONS: Mapping[str, str] = {"vl_convert": "vl-convert-python"}
"""What to install for a module of another name."""


def require_for(purpose: str, extra: str, *modules: str, alternative: str = "") -> None:
    """Raise `ExtraMissing` where one of the modules that `purpose` needs is not installed.

    `extra` brings them all; `alternative` is appended to the hint.
    """
    absent = [_DISTRIBUTIONS.get(name, name) for name in modules if find_spec(name) is None]
    if absent:
        raise ExtraMissing(
            f"{purpose} needs {' and '.join(absent)}, which this Python does not have",
            hint=f"pip install 'labledger[{extra}]' (in a checkout: pip install -e '.[{extra}]')"
            f"{alternative}",
        )


def require_analysis() -> None:
    """Raise `ExtraMissing` where a library that comparing needs is not installed."""
    require_for("comparing", "analysis", "numpy", "scipy")


def require_page() -> None:
    """Raise `ExtraMissing` where a library that the report's page needs is not installed."""
    alternative = "; --markdown and --json work without"
    require_for("the page", "report", "jinja2", "vl_convert", alternative=alternative)
