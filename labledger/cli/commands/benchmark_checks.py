"""The command `check`: whether the tasks of a benchmark behave as its agents promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli.options import arguments
from labledger.cli.options.run_options import Chosen, Running, with_option_groups
from labledger.cli.output.console import out, out_json_line, table
from labledger.text import counted

if TYPE_CHECKING:
    from labledger import BenchmarkCheck, Exit, RunOptions, RunOutcome

_FINDINGS = {
    "wrong_verdict": "wrong verdict",
    "not_graded": "could not be graded",
    "not_run": "did not run",
}


def register(app: typer.Typer) -> None:
    app.command()(with_option_groups(check, "variant", "shard"))


def check(
    benchmark: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT:LOCATION", help="A benchmark, such as harbor:./terminal-bench-2."
        ),
    ],
    *,
    run_id: arguments.NewRunId = None,
    chosen: Chosen,
    running: Running,
) -> None:
    """Run the agents of a benchmark whose verdict is known, and name the tasks that misbehave.

    The reference solution must pass and the agent that does nothing must fail on every task. Exits
    with 1 if a trial has another verdict, could not be graded or did not run.
    """
    options = running.options(
        chosen,
        run_id=run_id,
    )
    checks: list[BenchmarkCheck] = []

    def execute(watched_options: RunOptions) -> RunOutcome:
        checks.append(labledger.check_benchmark(benchmark, watched_options))
        return checks[0].outcome

    def conclude(_: RunOutcome) -> Exit:
        _print_check(checks[0], as_json=running.json)
        return labledger.Exit.GATE_MISSED if checks[0].findings else labledger.Exit.COMPLETE

    running.watch(
        options, execute, lambda: labledger.plan_run(benchmark, options).variants, conclude
    )


def _print_check(check: BenchmarkCheck, *, as_json: bool) -> None:
    """Print the trials that are not as expected as a table, or all as a line of JSON."""
    if as_json:
        trials = [trial.as_json() for trial in check.trials]
        out_json_line({"event": "benchmark_checked", "trials": trials})
        return
    tasks = len({trial.task_id for trial in check.trials})
    wrong = len({trial.task_id for trial in check.findings})
    out(f"{tasks - wrong} of {counted(tasks, 'task')} behave as expected")
    if check.findings:
        rows = [
            (
                trial.task_id,
                trial.agent,
                trial.expected,
                trial.verdict,
                _FINDINGS[trial.finding or ""],
                trial.status if trial.reason is None else f"{trial.status}: {trial.reason}",
            )
            for trial in check.findings
        ]
        table(("task", "agent", "expected", "verdict", "finding", "status"), rows)
