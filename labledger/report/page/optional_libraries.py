"""The libraries that the page needs, which an installation may lack; loaded when first used."""

from __future__ import annotations

from importlib.util import find_spec

from labledger.errors import ExtraMissing

_NEEDED = {"jinja2": "jinja2", "vl_convert": "vl-convert-python"}


def require() -> None:
    """Raise `ExtraMissing` where a library of the extra `report` is not installed."""
    absent = [name for module, name in _NEEDED.items() if find_spec(module) is None]
    if absent:
        raise ExtraMissing(
            f"the page needs {' and '.join(absent)}, which this Python does not have",
            hint="pip install 'labledger[report]' (in a checkout: pip install -e '.[report]'); "
            "--markdown and --json work without",
        )
