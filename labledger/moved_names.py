"""The former paths of names that moved from `labledger` to `labledger.errors` and `.results`.

Old paths work for one version, with a warning. `labledger` imports this module when a name is used
that it does not have, so that it costs nothing otherwise.
"""

import importlib
import warnings

_HOMES = ("labledger.errors", "labledger.results")
_FUNCTIONS = {
    *("cancelled_sentences", "comparison_texts", "expectation", "grading_name"),
    *("grading_sentences", "plan_text", "ranking_text", "rerun_sentences", "skipped_sentences"),
    *("unread_sentences", "untested_sentences", "view_names", "write_junit"),
}
"""The functions among the names that moved. The other names are of types and constants."""


def moved(name: str) -> object:
    """Return the object with a former name, and warn the user of `labledger` of its new path.

    Raises `AttributeError` for other names, such as a module's.
    """
    for home in _HOMES if name[:1].isupper() or name in _FUNCTIONS else ():
        module = importlib.import_module(home)
        if name in module.__all__:
            warnings.warn(
                f"labledger.{name} is deprecated and goes in the next version; use {home}.{name}",
                DeprecationWarning,
                stacklevel=3,
            )
            value: object = getattr(module, name)
            return value
    raise AttributeError(f"No labledger attribute {name}")
