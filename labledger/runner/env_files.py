"""Read the values of environment variables for a run from `--env` and `--env-file`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labledger.errors import InvalidInput, Problem

_QUOTED = re.compile(r"""(["'])(.*)\1\s*(#.*)?""")


_COMMENT = re.compile(r"\s#.*")


def read_env_file(path: Path) -> dict[str, str]:
    """Return the values of a file of `NAME=VALUE` lines, as `.env` files have them.

    A `#` at the beginning of a line or after a space begins a comment, unless it is in quotes. A
    leading `export`, quotes around a value and a byte order mark are allowed. Raises
    `InvalidInput`.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput("the environment file", [Problem(str(path), reason)]) from None
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name = name.strip()
        if equals and name.isidentifier():
            values[name] = _env_value(value)
        else:
            problems.append(Problem(str(path), "expected NAME=VALUE", line=number))
    if problems:
        raise InvalidInput("the environment file", problems)
    return values


def _env_value(text: str) -> str:
    """Return a value without its quotes and without a comment after it."""
    text = text.strip()
    quoted = _QUOTED.fullmatch(text)
    return quoted[2] if quoted else _COMMENT.sub("", text).strip()


def missing(names: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Return the `names` without a value, sorted."""
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
