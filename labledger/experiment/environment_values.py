"""Values of the environment variables that an experiment requires from outside.

They come from `--env`, from `--env-file` and from the host's environment, in this order of
precedence. They may be secrets: no message shows a value. Used by starting, resuming and regrading.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labledger.errors import InvalidInput, Problem


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """Return the values of `--env` arguments. A bare `NAME` takes the host's value.

    Raises `InvalidInput` with every problem.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for word in assignments:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            values[name] = value
        elif name.isidentifier() and name in os.environ:
            values[name] = os.environ[name]
        else:
            message = f"found {name!r}; expected NAME=VALUE, or a NAME that is set here"
            problems.append(Problem("--env", message))
    if problems:
        raise InvalidInput("the environment given", problems)
    return values


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
    """Return the names that have no value, sorted."""
    return sorted(name for name in names if name not in values)


def gather(assignments: Sequence[str], files: Sequence[Path | str]) -> dict[str, str]:
    """Return all values: `--env` overrides `--env-file`, a later file overrides an earlier one."""
    values = dict(os.environ)
    for path in files:
        values.update(read_env_file(Path(path)))
    values.update(parse_assignments(assignments))
    return values
