"""What comes with an installation: files that are not Python code, and optional libraries.

The files are schemas, migrations, templates and scripts. An installation may lack the libraries of
optional extras: check for them before the work begins, and import them when they are first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from labledger.errors import ExtraMissing

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    """A top-level folder of the project: inside an installed wheel, beside it in a checkout."""
    for candidate in (_PACKAGE / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"labledger's {name} folder is missing: the installation is broken")


def schemas() -> Path:
    return _shipped("schemas")


def migrations() -> Path:
    return _shipped("migrations")


def templates() -> Path:
    return _PACKAGE / "templates"


def trial_script() -> Path:
    return _PACKAGE / "trial" / "trial.sh"


def health_check_script() -> Path:
    return _PACKAGE / "trial" / "healthcheck.sh"


def report_palette() -> Path:
    """The colours of reports, as a style sheet."""
    return _PACKAGE / "report" / "palette.css"


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


_ANALYSIS = ("numpy", "scipy")


def has_analysis() -> bool:
    """Return whether the libraries that comparing needs are installed."""
    return all(map(find_spec, _ANALYSIS))


def require_analysis() -> None:
    """Raise `ExtraMissing` where a library that comparing needs is not installed."""
    require_for("comparing", "analysis", *_ANALYSIS)


def require_page() -> None:
    """Raise `ExtraMissing` where a library that the report's page needs is not installed."""
    alternative = "; --markdown and --json work without"
    require_for("the page", "report", "jinja2", "vl_convert", alternative=alternative)
