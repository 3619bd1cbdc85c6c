"""Arguments and options that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from labledger.api import InvalidInput, Problem
from labledger.cli.options import shell_completion
from labledger.text.byte_sizes import parse_size

Experiment = Annotated[
    Path, typer.Argument(help="The experiment file, or a folder that holds experiment.yaml.")
]
RunId = Annotated[
    str,
    typer.Argument(
        help="A run's id, as `labledger runs` lists it.", autocompletion=shell_completion.run_ids
    ),
]
LabDir = Annotated[
    Path | None,
    typer.Option(
        help="The lab folder; without it LABLEDGER_DIR, or the nearest .lab upwards.",
        readable=False,  # Left to the checks, which say what to do.
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N tasks.")]
Tasks = Annotated[
    list[str] | None, typer.Option("--task", help="Only tasks whose id fits this glob; repeatable.")
]
Variants = Annotated[
    list[str] | None, typer.Option("--variant", help="Only these variants (glob); repeatable.")
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", help="NAME=VALUE for a $NAME of the experiment; repeatable."),
]
EnvFile = Annotated[
    list[Path] | None, typer.Option("--env-file", help="A file of NAME=VALUE lines; repeatable.")
]
FailUnder = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[VARIANT=]RATE",
        help="Exit 1 where a variant's pass rate is lower than this; repeatable.",
    ),
]


def size(option: str, given: str) -> int:
    """Return the bytes in a size such as 500m or 2g. Raises `InvalidInput`."""
    try:
        return parse_size(given)
    except (ValueError, OverflowError):
        message = f"found {given!r}; expected a size such as 500m or 2g"
        raise InvalidInput("the size", [Problem(option, message)]) from None


def budget(option: str, given: str | None) -> float | None:
    """Return a budget: infinite for `none`, None if it is not given. Raises `InvalidInput`."""
    try:
        return math.inf if given == "none" else None if given is None else float(given)
    except ValueError:
        message = f"found {given!r}; expected a number, or none for no limit"
        raise InvalidInput("the budget", [Problem(option, message)]) from None


def environment(words: Sequence[str] | None) -> dict[str, str]:
    """Return the values of `--env` words. A bare `NAME` takes the value of this process.

    Raises `InvalidInput` with every problem. No message shows a value, which may be a secret.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for word in words or ():
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


def require_folder(option: str, path: Path) -> None:
    """Raise `InvalidInput` if a file cannot be written because its folder does not exist."""
    if not path.parent.is_dir():
        message = f"cannot write {path}: there is no folder {path.parent}"
        problem = Problem(option, message, hint="create the folder first, or choose another")
        raise InvalidInput("the file to write", [problem])
