"""Files of an installation that are not Python code, and checks for optional libraries.

The files are schemas, migrations, templates and scripts. An installation may lack the libraries of
extras, so check for them before the work begins, and import them where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from labledger.errors import ExtraMissing

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    """Return a top-level folder of the project. It is inside an installed wheel, or in a checkout
    beside the package."""
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
    """Return the style sheet with the colours of reports."""
    return _PACKAGE / "report" / "palette.css"


_DISTRIBUTIONS: Mapping[str, str] = {"vl_convert": "vl-convert-python"}
"""The names of distributions that differ from their modules' names."""


def require_for(purpose: str, extra: str, *modules: str, alternative: str = "") -> None:
    """Raise `ExtraMissing` if one of the modules that `purpose` needs is not installed.

    `extra` is the extra that installs them. `alternative` is appended to the hint.
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
    """Return whether the libraries for comparisons are installed."""
    return all(map(find_spec, _ANALYSIS))


def require_analysis() -> None:
    """Raise `ExtraMissing` if a library for comparisons is not installed."""
    require_for("comparing", "analysis", *_ANALYSIS)


def require_page() -> None:
    """Raise `ExtraMissing` if a library for the report's page is not installed."""
    alternative = "; --markdown and --json work without"
    require_for("the page", "report", "jinja2", "vl_convert", alternative=alternative)


def require_otel() -> None:
    """Raise `ExtraMissing` if the libraries of OpenTelemetry are not installed."""
    require_for(
        "exporting spans", "otel", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"
    )


def require_inspect() -> None:
    """Raise `ExtraMissing` if the library that writes logs of Inspect is not installed."""
    require_for("writing logs of Inspect", "inspect", "inspect_ai")
