"""`labledger plan`: how large an experiment must be to show a difference, and what it costs.

The numbers and the words are the library's; this module parses options and lays out tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli.options import arguments
from labledger.cli.options.run_options import Chosen, with_option_groups

if TYPE_CHECKING:
    from labledger import PlanText


def register(app: typer.Typer) -> None:
    app.command()(with_option_groups(plan, "shard", "build"))


def plan(
    experiment: arguments.Experiment,
    *,
    detect: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="The difference to show: 0.05 for 5 points of a pass rate; else in the metric's "
            "unit.",
        ),
    ],
    power: Annotated[
        float, typer.Option(help="The probability with which it shall be shown.")
    ] = 0.8,
    confidence: Annotated[
        float, typer.Option(help="The confidence level of the comparison, and of all ranges.")
    ] = 0.95,
    metric: Annotated[
        str, typer.Option(help="pass_rate, the primary metric's name, or a metric's id.")
    ] = "pass_rate",
    from_runs: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="A run to estimate from, or RUN1+RUN2 for several as one; repeatable. By default "
            "the newest ten of the experiment.",
        ),
    ] = None,
    chosen: Chosen,
    max_concurrency: arguments.MaxConcurrency = None,
    json: arguments.Json = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Say how many tasks and replications show a difference, and what they cost and take.

    Estimates from earlier runs how much results vary between tasks and within them, and answers for
    tasks like these and for exactly these tasks. Ranges say how well that is known. Runs nothing.
    """
    from labledger.cli.output.console import out_json

    options = labledger.PlanOptions(
        detect=detect,
        power=power,
        confidence=confidence,
        metric=metric,
        from_runs=tuple(from_runs or ()),
    )
    run_options = labledger.RunOptions(
        lab_dir=lab_dir,
        **chosen.as_options(),
        max_concurrency=max_concurrency,
    )
    size_plan = labledger.plan(experiment, options, run_options)
    if json:
        out_json(size_plan.as_json())
    else:
        _print(labledger.plan_text(size_plan))


def _print(text: PlanText) -> None:
    from labledger.cli.output.console import out, out_sentence, table

    for fact in text.facts:
        out_sentence(fact)
    for each in text.tables:
        out()
        out_sentence(each.title)
        table(each.columns, each.rows, right=[name for name in each.columns if name])
    if text.notes:
        out()
    for note in text.notes:
        out_sentence(note)
