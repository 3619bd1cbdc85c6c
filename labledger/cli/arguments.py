"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from labledger.cli import completing

Experiment = Annotated[
    Path, typer.Argument(help="The experiment file, or a folder that holds experiment.yaml.")
]
RunId = Annotated[
    str,
    typer.Argument(
        help="A run's id, as `labledger runs` lists it.", autocompletion=completing.run_ids
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
MaxConcurrency = Annotated[
    int | None, typer.Option("--max-concurrency", "-n", min=1, help="How many trials run at once.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first so many tasks.")]
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
EventsJson = Annotated[bool, typer.Option("--json", help="One event a line on stdout, as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings, errors and the result.")]
Patience = Annotated[
    float,
    typer.Option(
        min=0,
        help="Seconds that the Docker engine may be gone, or a disk full, before the run stops.",
    ),
]
MinFree = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="What must be free for another trial to begin, such as 2g; 512m where not given.",
    ),
]
Keep = Annotated[
    Literal["none", "failed", "all"],
    typer.Option(
        help="Trial folders that stay, in the run folder's `kept`; secrets in them stay, too.",
    ),
]
BudgetUsd = Annotated[
    float | None,
    typer.Option(min=0, help="Stop dispatching when trials have cost so much (metric cost_usd)."),
]
BudgetTokens = Annotated[
    float | None,
    typer.Option(
        min=0, help="Stop dispatching at so many tokens (metrics tokens_in and tokens_out)."
    ),
]
MaxErrorRate = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Stop where a larger share of slots ends as setup, grade or infra error.",
    ),
]
LeaseTtl = Annotated[
    float,
    typer.Option(min=1, help="Seconds that the run stays this process's without a heartbeat."),
]
FailUnder = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[VARIANT=]RATE",
        help="Exit 1 where a variant passes fewer than this share of its slots; repeatable.",
    ),
]


def size(option: str, given: str | None, otherwise: int) -> int:
    """Bytes in an option's value. Raises `InvalidInput`."""
    from labledger.errors import InvalidInput, Problem
    from labledger.experiment.checks import memory_bytes

    try:
        return otherwise if given is None else memory_bytes(given)
    except (ValueError, KeyError):
        message = f"found {given!r}; expected a size such as 500m or 2g"
        raise InvalidInput("the size", [Problem(option, message)]) from None


def experiment_file(given: Path) -> Path:
    return given / "experiment.yaml" if given.is_dir() else given
