"""labledger runs agent experiments in containers and keeps every result in one SQLite ledger.

Start with `run` and `open_ledger`; docs/reference/python.md lists every public name. Each is loaded
from `labledger.api` when it is first used, so that the command line starts fast.

>>> import labledger
>>> outcome = labledger.run("my-experiment/experiment.yaml")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labledger import api

if TYPE_CHECKING:
    from labledger.api import *

__version__ = "0.3.0"

if not TYPE_CHECKING:  # A type checker cannot evaluate this list and would treat it as empty.
    __all__ = api.__all__


def __getattr__(name: str) -> Any:
    if name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module 'labledger' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*api.__all__, "__version__"]
