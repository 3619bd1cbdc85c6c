"""labledger runs agent experiments in containers and keeps every result in one SQLite ledger.

Start with `run` and `open_ledger`. This package has functions and the options that they take,
`labledger.results` has what they return, and `labledger.errors` what they raise. `__init__.pyi`
lists the names, and docs/reference/python.md explains them. Each name is loaded when it is first
used, so that commands start fast.

>>> import labledger
>>> outcome = labledger.run("my-experiment/experiment.yaml")
"""

# These two imports must come first: see `host_programs`.
import sys

from labledger.host_programs import leave_out_working_dir

if sys.argv[:1] == ["-m"] and "labledger" in sys.orig_argv:
    # This is `python -m labledger`, whose own module is imported next.
    leave_out_working_dir()

import lazy_loader

__version__ = "0.3.0"

_load, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)

__all__ = [name for name in _names if name not in ("errors", "results")]
"""Every public name of this package, without its two public modules."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used. Warn of a name that moved to another module."""
    if name in _names:
        return _load(name)
    # Imported late: only earlier names need it.
    from labledger.moved_names import moved

    return moved(name)
