"""The types that functions of `labledger` return, and the functions that put results into words.

Also holds the choices that appear in results and options, such as `Verdict` and `Estimand`. The
stub `results.pyi` lists every name, and docs/reference/python-results.md shows examples. A name is
loaded when it is first used.

>>> from labledger.results import RunOutcome, Verdict
"""

import ast
import importlib
from pathlib import Path


def _read_stub() -> dict[str, str]:
    """Return the module of each name in the stub.

    `lazy_loader` reads stubs, too, but stores the names of a module in the module's package.
    """
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULES = _read_stub()
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Import a name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"No labledger.results attribute {name}")
    value: object = getattr(importlib.import_module(f"labledger.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__.copy()
