"""Commands for experiments and benchmarks: init, preflight, check and plan.

`check` runs the agents of a benchmark whose verdict is known; the others run nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import (
    add_lab_dir,
    out,
    out_json,
    out_json_line,
    out_sentence,
    print_checks,
    say,
    table,
)
from labledger.cli.option_groups import Chosen, Running, with_option_groups
from labledger.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger import BenchmarkCheck, Exit, PlanText, RunOptions, RunOutcome, TaskSupport


def init(
    directory: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    profile: Annotated[
        str, typer.Option(help="agent-eval, ab-test, sweep or regression.")
    ] = "agent-eval",
    image: Annotated[str | None, typer.Option(help="The image its trials run in.")] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT:LOCATION",
            help="Make an experiment of this benchmark, such as humaneval:./HumanEval.jsonl.",
        ),
    ] = None,
    agent: arguments.Agents = None,
    strict: arguments.Strict = False,
) -> None:
    """Create a commented experiment that runs as it is: a small one, or that of a benchmark."""
    warnings: list[str] = []
    for path in labledger.create_experiment(
        directory,
        profile,
        image=image,
        benchmark=benchmark,
        agents=tuple(agent or ()),
        strict=strict,
        on_event=lambda event: warnings.append(event["message"]),
    ):
        out(str(path))
    for warning in warnings:
        say(f"warning: {warning}")
    say()
    say(f"next: labledger run {shlex.quote(str(directory / 'experiment.yaml'))}")


@with_option_groups("limit", "variants")
def preflight(
    experiment: arguments.Experiment,
    *,
    chosen: Chosen,
    lab_dir: arguments.LabDir = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    json: arguments.Json = False,
    pull: Annotated[
        bool,
        typer.Option("--pull", help="Pull missing images, or build those that no registry offers."),
    ] = False,
    ask_models: Annotated[
        bool,
        typer.Option(
            "--ask-models",
            help="Also ask each model for one word if all other checks pass; costs a little.",
        ),
    ] = False,
    egress_image: arguments.EgressImage = None,
    on: arguments.On = None,
    insecure: arguments.Insecure = False,
) -> None:
    """Check everything that a run needs, without creating a run.

    With --on, each host of the cluster is checked too: version, engine, clock, disk and images.

    For a benchmark, lists each task and why it cannot be run, if so.
    """
    from labledger.cli.run_display import watcher

    options = labledger.RunOptions(
        lab_dir=lab_dir,
        egress_image=egress_image,
        on=on,
        insecure=insecure,
        env=arguments.parse_environment(env),
        env_files=tuple(env_file or ()),
        **chosen.as_options(),
    )
    with watcher(as_json=False, quiet=json) as display:
        results = labledger.preflight(
            experiment, options.with_listener(display), pull=pull, ask_models=ask_models
        )
    if json:
        checks = [check.as_json() for check in results.checks]
        tasks = [support.as_json() for support in results.tasks]
        out_json({"tasks": tasks, "checks": checks} if tasks else checks)
    else:
        if results.tasks:
            _print_tasks(results.tasks)
        print_checks(results.checks)
    if results.failures:
        raise typer.Exit(int(results.failures[0].exit_code))
    say()
    words = ["labledger", "run", experiment, *chosen.words()]
    words += [] if on is None else ["--on", on]
    words += ["--insecure"] if insecure else []
    say(f"next: {add_lab_dir(shlex.join(words), lab_dir)}")


def _print_tasks(tasks: Sequence[TaskSupport]) -> None:
    """Print a table of the tasks of a benchmark, and whether each can be run."""
    rows = [(task.task_id, "yes" if task.runs else "no", task.reason or "") for task in tasks]
    table(("task", "runs", "why not"), rows)
    out(f"{sum(task.runs for task in tasks)} of {counted(len(tasks), 'task')} can be run")
    out()


@with_option_groups("shard", "build")
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
    metric: arguments.Metric = "pass_rate",
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
    options = labledger.PlanOptions(
        detect=detect,
        power=power,
        confidence=confidence,
        metric=metric,
        from_runs=tuple(from_runs or ()),
    )
    run_options = labledger.RunOptions(
        lab_dir=lab_dir, **chosen.as_options(), max_concurrency=max_concurrency
    )
    size_plan = labledger.plan(experiment, options, run_options)
    if json:
        out_json(size_plan.as_json())
    else:
        _print(labledger.plan_text(size_plan))


def _print(text: PlanText) -> None:
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


_FINDINGS = {
    "wrong_verdict": "wrong verdict",
    "not_graded": "could not be graded",
    "not_run": "did not run",
}


@with_option_groups("variants", "shard")
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
    options = running.options(chosen, run_id=run_id)
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
        coverage = check.outcome.coverage.as_json()
        out_json_line({"event": "benchmark_checked", "trials": trials, **coverage})
        return
    tasks = len({trial.task_id for trial in check.trials})
    wrong = len({trial.task_id for trial in check.findings})
    skipped = len(check.outcome.coverage.skipped)
    left_out = f"; {counted(skipped, 'other task')} cannot be run" if skipped else ""
    out(f"{tasks - wrong} of {counted(tasks, 'task')} behave as expected{left_out}")
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
