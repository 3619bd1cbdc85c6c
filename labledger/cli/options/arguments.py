"""Arguments and options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from labledger.cli.options import shell_completion

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


def size(option: str, given: str | None, otherwise: int) -> int:
    """Bytes in an option's value. Raises `InvalidInput`."""
    from labledger.errors import InvalidInput, Problem
    from labledger.experiment.consistency_checks import memory_bytes

    try:
        return otherwise if given is None else memory_bytes(given)
    except (ValueError, KeyError):
        message = f"found {given!r}; expected a size such as 500m or 2g"
        raise InvalidInput("the size", [Problem(option, message)]) from None


def limit(option: str, given: str | None) -> float | None:
    """A budget; infinite where it is to be none. Raises `InvalidInput`."""
    from labledger.errors import InvalidInput, Problem

    try:
        return math.inf if given == "none" else None if given is None else float(given)
    except ValueError:
        message = f"found {given!r}; expected a number, or none for no limit"
        raise InvalidInput("the budget", [Problem(option, message)]) from None


def require_folder(option: str, path: Path) -> None:
    """Raise `InvalidInput` for a file to be written in a folder that is not there."""
    from labledger.errors import InvalidInput, Problem

    if not path.parent.is_dir():
        message = f"cannot write {path}: there is no folder {path.parent}"
        problem = Problem(option, message, hint="make the folder first, or choose another")
        raise InvalidInput("the file to write", [problem])


def experiment_file(given: Path) -> Path:
    return given / "experiment.yaml" if given.is_dir() else given
