"""labledger runs agent experiments in containers and keeps every result in one SQLite ledger.

Start with `run` and `open_ledger`. docs/reference/python.md explains every public name, and
`__init__.pyi` lists them. Each name is loaded when it is first used, so that commands start fast.

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

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
