"""Where the files that are not Python code lie: schemas, migrations, templates, `trial.sh`."""

from __future__ import annotations

from pathlib import Path

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
