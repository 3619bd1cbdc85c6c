"""Read a small YAML file, such as settings, whose text may come from a stranger.

PyYAML expands aliases, so a few lines can stand for billions of values. This module counts the
values first, and refuses a text with too many values or too much nesting. Experiment files have a
reader of their own, which keeps lines.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_VALUES = 100_000
"""The largest number of values in a document, with aliases expanded."""
MAX_LEVELS = 64
"""How deeply a document may nest."""
_TOO_DEEP = f"nests deeper than {MAX_LEVELS} levels"

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTRUCTION_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""How PyYAML fails to build a value with a wrong content, such as the date `2026-99-99`."""


class NotYaml(Exception):
    """A text that is not YAML, or too large. The message is the rest of a sentence about it."""


def load_yaml(text: bytes) -> Any:
    """Return the values of a YAML document. Raises `NotYaml`, without a part of the text."""
    try:
        _require_bounded(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are safe loaders
    except (yaml.YAMLError, *_CONSTRUCTION_ERRORS) as error:
        raise NotYaml(_TOO_DEEP if nests_too_deeply(error) else yaml_fault(error)) from None


def _require_bounded(text: bytes) -> None:
    """Raise `NotYaml` if a document has too many values, or nests too deeply."""
    sizes: dict[str, int] = {}
    """How many values each anchor stands for."""
    open_nodes: list[tuple[str | None, int]] = []
    """The anchor of each open mapping or list, and the number of values before it."""
    count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        match event:
            case yaml.AliasEvent(anchor=str(anchor)):
                # An anchor that is still open contains itself. PyYAML builds that as a loop.
                if anchor in (name for name, _ in open_nodes):
                    raise NotYaml("has an anchor that contains itself")
                count += sizes.get(anchor, 1)
            case yaml.ScalarEvent():
                count += 1
                sizes |= {event.anchor: 1} if event.anchor else {}
            case yaml.CollectionStartEvent():
                open_nodes.append((event.anchor, count))
                count += 1
            case yaml.CollectionEndEvent():
                name, before = open_nodes.pop()
                sizes |= {name: count - before} if name else {}
        if count > MAX_VALUES:
            raise NotYaml(f"holds more than {MAX_VALUES:,} values, with aliases expanded")
        if len(open_nodes) > MAX_LEVELS:
            raise NotYaml(_TOO_DEEP)


def nests_too_deeply(error: Exception) -> bool:
    """Return whether PyYAML refused a text because it is nested too deeply.

    PyYAML has this limit from 6.0.4 on. It is larger than every limit of labledger.
    """
    return "maximum nesting depth" in str(getattr(error, "problem", ""))


def yaml_fault(error: Exception) -> str:
    """Return the end of a sentence that says where a file is not valid YAML.

    The sentence does not quote the file, which may be a link to a secret.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return f"is not YAML{place}"
