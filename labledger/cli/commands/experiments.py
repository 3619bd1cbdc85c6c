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
from labledger.cli.option_groups import Chosen, Running, run_options, with_option_groups
from labledger.errors import Exit
from labledger.text.figures import clock_time
from labledger.text.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger import RunOptions
    from labledger.results import BenchmarkCheck, CheckPlan, PlanText, RunOutcome, TaskSupport


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
    """Create a commented experiment that is ready to run: a small one, or a benchmark's."""
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
        typer.Option("--pull", help="Pull missing images; build those that no registry has."),
    ] = False,
    ask_models: Annotated[
        bool,
        typer.Option(
            "--ask-models",
            help="If all other checks pass, also ask each model for one word; costs a little.",
        ),
    ] = False,
    egress_image: arguments.EgressImage = None,
    on: arguments.On = None,
    insecure: arguments.Insecure = False,
) -> None:
    """Check everything that a run needs, without creating a run.

    With --on, also checks each host of the cluster: version, engine, clock, disk and images. For a
    benchmark, lists each task and, if it cannot be run, the reason.
    """
    from labledger.cli.run_display import watcher

    options = run_options(
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
            help="The difference to detect: 0.05 for 5 points of a pass rate; for another metric, "
            "in its unit.",
        ),
    ],
    power: Annotated[float, typer.Option(help="The probability of detecting it.")] = 0.8,
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
    """Say how many tasks and replications detect a difference, at what cost, and in what time.

    Estimates from earlier runs how much results vary between and within tasks. Answers both for all
    tasks like these and for exactly these tasks, with ranges that express the uncertainty. Runs
    nothing.
    """
    options = labledger.PlanOptions(
        detect=detect,
        power=power,
        confidence=confidence,
        metric=metric,
        from_runs=tuple(from_runs or ()),
    )
    given = run_options(lab_dir=lab_dir, **chosen.as_options(), max_concurrency=max_concurrency)
    size_plan = labledger.plan(experiment, options, given)
    if json:
        out_json(size_plan.as_json())
    else:
        _print(labledger.results.plan_text(size_plan))


def _print(text: PlanText) -> None:
    for fact in text.facts:
        out_sentence(fact)
    for part in text.tables:
        out()
        out_sentence(part.title)
        table(part.columns, part.rows, right=[name for name in part.columns if name])
    if text.notes:
        out()
    for note in text.notes:
        out_sentence(note)


_FINDINGS = {
    "wrong_verdict": "wrong verdict",
    "not_graded": "could not be graded",
    "not_run": "did not run",
    "solution_fails": "solution fails",
    "passes_without_work": "passes without work",
    "flaky": "flaky",
    "tests_time_out": "tests time out",
    "no_solution": "no solution",
    "solution_in_image": "solution in the image",
    "solution_in_git": "solution in Git objects",
    "needs_network": "needs the network",
    "slow_grader": "slow tests",
    "slow_solution": "slow solution",
    "reward_varies": "reward varies",
    "reward_without_work": "reward without work",
    "solution_in_task": "solution in the task",
    "tests_in_image": "tests in the image",
    "other_commits": "other commits",
    "same_task": "same task",
    "left_out": "left out",
    "not_searched": "not searched",
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
    repeats: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often each agent runs on each task.")
    ] = 3,
    offline: Annotated[
        bool,
        typer.Option(help="Also run solutions and their tests once without a network."),
    ] = True,
    search: Annotated[
        bool,
        typer.Option(help="Also search images and Git objects for the solutions."),
    ] = True,
    run_id: arguments.NewRunId = None,
    chosen: Chosen,
    running: Running,
) -> None:
    """Run agents whose verdict is known on a benchmark, and name the tasks that misbehave.

    On every task and each time, the reference solution must pass, and the agent that does nothing
    must fail. The exit code is 1 if a task cannot be trusted; remarks do not change it.
    """
    options = running.options(chosen, run_id=run_id)
    checks: list[BenchmarkCheck] = []

    def execute(watched_options: RunOptions) -> RunOutcome:
        checked = labledger.check_benchmark(
            benchmark,
            watched_options,
            repeats=repeats,
            offline=offline,
            search=search,
            on_plan=lambda plan: _say_plan(plan, as_json=running.json),
        )
        checks.append(checked)
        return checked.outcome

    def conclude(_: RunOutcome) -> Exit:
        checked = checks[0]
        _print_check(checked, as_json=running.json)
        if checked.problem is not None:
            say(f"not everything was checked: {checked.problem}")
            second = checked.outcome_offline
            return Exit.INCOMPLETE if second is None else second.exit_code
        return Exit.GATE_MISSED if checked.findings else Exit.COMPLETE

    running.watch(
        options, execute, lambda: labledger.plan_run(benchmark, options).variants, conclude
    )


def _say_plan(plan: CheckPlan, *, as_json: bool) -> None:
    """Say how many trials will run, and how long they may take."""
    if as_json:
        out_json_line(
            {
                "event": "check_planned",
                "tasks": plan.tasks,
                "trials": plan.trials,
                "agents": plan.agents,
                "repeats": plan.repeats,
                "agents_offline": plan.agents_offline,
                "at_once": plan.at_once,
                "at_most_s": plan.at_most_s,
            }
        )
        return
    often = "once" if plan.repeats == 1 else f"{plan.repeats} times each"
    parts = f"{', '.join(plan.agents)} {often}"
    if plan.agents_offline:
        parts += f", and {', '.join(plan.agents_offline)} once without a network"
    say(f"{counted(plan.trials, 'trial')} on {counted(plan.tasks, 'task')}: {parts}")
    if plan.at_most_s is not None:
        longest = clock_time(plan.at_most_s)
        say(f"with {plan.at_once} at once, they take {longest} if each uses its whole time limit")
    else:
        say("their longest duration is unknown: some tasks give the agent no time limit")
    say("--repeats 1, --no-offline, --no-search, --task and --limit make them fewer")


def _print_check(check: BenchmarkCheck, *, as_json: bool) -> None:
    """Print findings and remarks about tasks as a table, or everything as a line of JSON."""
    if as_json:
        out_json_line(
            {
                "event": "benchmark_checked",
                "trials": [trial.as_json() for trial in check.trials],
                "findings": [finding.as_json() for finding in check.findings],
                "remarks": [remark.as_json() for remark in check.remarks],
                "problem": check.problem,
                **check.outcome.coverage.as_json(),
            }
        )
        return
    tasks = len({trial.task_id for trial in check.trials})
    wrong = len({finding.task_id for finding in check.findings})
    skipped = len(check.outcome.coverage.skipped)
    left_out = f"; {counted(skipped, 'other task')} cannot be run" if skipped else ""
    out(f"{tasks - wrong} of {counted(tasks, 'task')} behave as expected{left_out}")
    if check.tasks:
        rows = [
            (
                task.task_id,
                "remark" if task.is_remark else "finding",
                _FINDINGS[task.finding],
                task.detail,
            )
            for task in check.tasks
        ]
        table(("task", "", "what", "seen"), rows)
