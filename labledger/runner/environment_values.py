"""Values of the environment variables that an experiment requires from outside.

They come from `RunOptions.env`, from its `env_files` and from this process's environment, in this
order of precedence. They may be secrets: no message shows a value and nothing stores one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labledger.errors import InvalidInput, Problem


def read_env_file(path: Path) -> dict[str, str]:
    """Return the values of a file of `NAME=VALUE` lines.

    `#` comments, a leading `export` and quoted values are understood. Raises `InvalidInput`.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput("the environment file", [Problem(str(path), reason)]) from None
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name.isidentifier():
            problems.append(Problem(str(path), "expected NAME=VALUE", line=number))
        elif len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            values[name] = value[1:-1]
        else:
            values[name] = value
    if problems:
        raise InvalidInput("the environment file", problems)
    return values


def missing(names: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Return those of `names` that have no value, sorted."""
    return sorted(name for name in names if name not in values)


def gather(given: Mapping[str, str], files: Sequence[Path | str]) -> dict[str, str]:
    """Return all values: `given` overrides files, and a later file overrides an earlier one.

    Raises `InvalidInput` for a file that cannot be read, or if `given` is not a mapping of text.
    """
    if not isinstance(given, Mapping) or not all(isinstance(v, str) for v in given.values()):
        problem = Problem("env", "expected a mapping of names to values, both text")
        raise InvalidInput("the environment given", [problem])
    values = dict(os.environ)
    for path in files:
        values.update(read_env_file(Path(path)))
    values.update(given)
    return values
