"""Arguments and options that several commands share: their declarations, parsing and completion.

The annotated types are for the signatures of commands. A value that cannot be parsed raises
`InvalidInput`, which names the option and what was expected.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.text.escaping import escape_line
from labledger.text.figures import parse_size

if TYPE_CHECKING:
    from labledger.results import RunStatus

_MAX_COMPLETIONS = 200
_RUNS_SQL = (
    "SELECT run_id FROM ("
    "SELECT run_id, created_at FROM runs UNION "
    "SELECT run_id || '.g' || generation, created_at FROM gradings WHERE generation > 1"
    ") WHERE substr(run_id, 1, length(:typed)) = :typed ORDER BY created_at DESC LIMIT :most"
)


def complete_run_id(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the run ids that begin with the typed text, the newest run first."""
    from labledger import open_ledger

    try:
        with open_ledger(lab_dir=ctx.params.get("lab_dir")) as ledger:
            rows = ledger.rows(_RUNS_SQL, {"typed": incomplete, "most": _MAX_COMPLETIONS})[1]
            # Leave out names with characters that a terminal cannot show and users cannot type.
            return [run_id for (run_id,) in rows if escape_line(run_id) == run_id]
    except LabLedgerError:
        return []


def complete_view(incomplete: str) -> list[str]:
    """Return the views whose names begin with the typed text."""
    from labledger.results import view_names

    return [name for name in view_names() if name.startswith(incomplete)]


Experiment = Annotated[
    str,
    typer.Argument(
        help="The experiment file, a folder that holds experiment.yaml, or a benchmark as "
        "FORMAT:LOCATION, such as humaneval:./HumanEval.jsonl.",
    ),
]
EgressImage = Annotated[
    str | None,
    typer.Option(
        envvar="LABLEDGER_EGRESS_IMAGE",
        help="Image with Python 3.11 or later for the egress proxies of `network: allowlist`; "
        "by default labledger/python:3.",
    ),
]
Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        metavar="AGENT",
        help="An agent that comes with the benchmark, or one with a profile, as "
        "NAME[@VERSION]:model=MODEL[,OPTION=VALUE…]; repeatable. NAME may be the path of a folder "
        "with a profile, such as ./my-agent.",
    ),
]
Image = Annotated[str | None, typer.Option(help="The image for the trials of a benchmark.")]
On = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|FILE|local",
        help="Run the trials on the hosts of a cluster, given by the address of its Dask scheduler "
        "or by a cluster file. Stored with the run; `local` is this machine.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Connect without TLS to another machine. Anyone who can reach the scheduler can run "
        "programs on every host.",
    ),
]
SkipRefused = Annotated[
    bool,
    typer.Option("--skip-refused", help="Skip tasks that labledger cannot run."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Treat warnings as errors: task keys that labledger ignores, and numbers that a "
        "command gets as another text, such as 3.10.",
    ),
]
Build = Annotated[
    bool,
    typer.Option("--build", help="Build the images under `images` instead of pulling them."),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Take over the run from another coordinator when its lease ends."
    ),
]
Frozen = Annotated[
    bool, typer.Option("--frozen", help="Use the run's own copy if the experiment has changed.")
]
BudgetUsd = Annotated[
    str | None,
    typer.Option(
        metavar="USD|none",
        help="Start no more trials once they have cost this much (metric cost_usd). Stored with "
        "the run, so resume obeys it too; `none` removes it.",
    ),
]
BudgetTokens = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS|none",
        help="A budget in tokens (metrics tokens_in and tokens_out); works like --budget-usd.",
    ),
]
MaxConcurrency = Annotated[
    int | None,
    typer.Option(
        "--max-concurrency", "-n", min=1, metavar="N", help="How many trials run at once."
    ),
]
NewRunId = Annotated[str | None, typer.Option("--run-id", help="The run's id.")]
RunId = Annotated[
    str,
    typer.Argument(
        help="A run's id, as `labledger runs` lists it.", autocompletion=complete_run_id
    ),
]
GradingNumber = Annotated[
    int | None,
    typer.Option(
        "--grading",
        metavar="N",
        min=1,
        help="Use this grading of the run instead of the current one; 1 is the run's own.",
    ),
]
ScheduleIdx = Annotated[int, typer.Argument(help="The trial's number in the run, from 0.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Metric = Annotated[
    str, typer.Option(help="pass_rate, the primary metric's name, or a metric's id.")
]
LowerIsBetter = Annotated[
    bool | None,
    typer.Option(
        "--lower-is-better/--higher-is-better", help="Which values of --metric are better."
    ),
]
LabDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The lab folder; by default LABLEDGER_DIR, or the nearest .lab upwards.",
        readable=False,  # Checked by the library, with a hint of what to do.
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Use only the first N tasks.")]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task", metavar="GLOB", help="Only tasks whose id matches this glob; repeatable."
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variant", metavar="GLOB", help="Only variants whose id matches this glob; repeatable."
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="K/N",
        help="Run only the K-th of N disjoint shards of the trials, such as 2/5. `compare` and "
        "`report` take the runs of all shards as one: RUN1+RUN2.",
    ),
]
Replay = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Answer the agents with the calls to models that this run recorded "
        "(`runtime.models.record`). No provider is asked, no key is needed, and nothing is spent.",
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="NAME=VALUE", help="A value for a $NAME of the experiment; repeatable."
    ),
]
EnvFile = Annotated[
    list[Path] | None,
    typer.Option("--env-file", metavar="FILE", help="A file of NAME=VALUE lines; repeatable."),
]
Notify = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RECEIVER",
        help="Notify this receiver when the run finishes or stops, and when most of its budget is "
        "used, a host is lost, many trials are errors or a request is applied. A receiver is the "
        "URL of a webhook, a '$NAME' of the environment with one, or a command, which gets JSON on "
        "its stdin. Stored with the run; `none` removes its receivers. Repeatable.",
    ),
]
FailUnder = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[VARIANT=]RATE",
        help="Exit 1 if a variant's pass rate is lower than this; repeatable.",
    ),
]


def parse_size_option(option: str, text: str) -> int:
    """Return the bytes in a size such as 500m or 2g. Raises `InvalidInput`."""
    try:
        return parse_size(text)
    except (ValueError, OverflowError):
        message = f"found {text!r}; expected a size such as 500m or 2g"
        raise InvalidInput("the size", [Problem(option, message)]) from None


def parse_run_status(text: str | None) -> RunStatus | None:
    """Return the status of a run by its name. Raises `InvalidInput`."""
    from labledger.results import RunStatus

    if text is None or text in set(RunStatus):
        return None if text is None else RunStatus(text)
    message = f"found {text!r}; expected one of {', '.join(RunStatus)}"
    raise InvalidInput("the status", [Problem("--status", message)])


def parse_since(text: str | None, option: str = "--since") -> datetime | None:
    """Return a time from a date, a local time, or an age such as 7d. Raises `InvalidInput`."""
    if text is None:
        return None
    age = re.fullmatch(r"([0-9]{1,6})([dhm])", text)
    try:
        if age is not None:
            unit = {"d": "days", "h": "hours", "m": "minutes"}[age[2]]
            return datetime.now(UTC) - timedelta(**{unit: int(age[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        message = f"found {text!r}; expected a date such as 2026-11-22, or an age such as 7d or 12h"
        raise InvalidInput("the time", [Problem(option, message)]) from None


def parse_budgets(usd: str | None, tokens: str | None) -> dict[str, Any]:
    """Return budgets by their names in `RunOptions`: infinite for `none`, None if not given.

    Raises `InvalidInput`.
    """
    budgets = {}
    for name, text in (("budget_usd", usd), ("budget_tokens", tokens)):
        try:
            budgets[name] = math.inf if text == "none" else None if text is None else float(text)
        except ValueError:
            message = f"found {text!r}; expected a number, or none for no limit"
            problem = Problem(f"--{name.replace('_', '-')}", message)
            raise InvalidInput("the budget", [problem]) from None
    return budgets


def parse_count(option: str, text: str) -> int | None:
    """Return a number of trials, None for `none`. Raises `InvalidInput`."""
    if text == "none":
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        message = f"found {text!r}; expected 1 or more, or none for no limit"
        raise InvalidInput("the number", [Problem(option, message)])
    return int(text)


def parse_environment(words: Sequence[str] | None) -> dict[str, str]:
    """Return the variables of `--env` words. A bare `NAME` takes this process's value.

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
            message = f"found {name!r}; expected NAME=VALUE, or a NAME that this process has"
            problems.append(Problem("--env", message))
    if problems:
        raise InvalidInput("the environment given", problems)
    return values
