"""Commands for experiments: init, preflight, plan, run, resume, extend, regrade.

`run`, `resume`, `extend` and `regrade` share the options of `Running`, which also displays the run
and raises `typer.Exit` with its exit code.
"""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli.options import arguments
from labledger.cli.options.run_options import (
    BUDGETS,
    Chosen,
    Running,
    variants_of,
    with_option_groups,
)
from labledger.cli.output.console import (
    add_lab_dir,
    out,
    out_json,
    out_json_parts,
    out_lines,
    print_checks,
    say,
    table,
)
from labledger.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger import PlanText, RunExtension, RunPlan, TaskSupport

_MAX_PRINTED_SLOTS = 200


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(with_option_groups(preflight, "limit", "variant"))
    for command in (run, resume, extend):
        app.command()(with_option_groups(command))
    app.command()(with_option_groups(regrade, *BUDGETS))


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
) -> None:
    """Create a commented experiment that runs as it is: a small one, or that of a benchmark."""
    agents = tuple(agent or ())
    for path in labledger.create_experiment(
        directory, profile, image=image, benchmark=benchmark, agents=agents
    ):
        out(str(path))
    say()
    say(f"next: labledger run {shlex.quote(str(directory / 'experiment.yaml'))}")


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
    egress_image: arguments.EgressImage = None,
    on: arguments.On = None,
    insecure: arguments.Insecure = False,
) -> None:
    """Check everything that a run needs, without creating a run.

    With --on, each host of the cluster is checked too: version, engine, clock, disk and images.

    For a benchmark, lists each task and why it cannot be run, if so.
    """
    from labledger.cli.output.run_display import watcher

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
        results = labledger.preflight(experiment, options.with_listener(display), pull=pull)
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


def run(
    experiment: arguments.Experiment,
    *,
    run_id: arguments.NewRunId = None,
    chosen: Chosen,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved experiment and the schedule.")
    ] = False,
    running: Running,
) -> None:
    """Run an experiment in containers.

    Runs every variant on every task, with its replications. Each trial has a container of its own
    and is graded there. The checks of `preflight` are done first.
    """
    options = running.options(
        chosen,
        run_id=run_id,
    )
    if dry_run:
        planned = labledger.plan_run(experiment, options)
        _print_plan(planned, labledger.expectation(planned, running.lab_dir), as_json=running.json)
        return
    running.watch(
        options,
        lambda watched_options: labledger.run(experiment, watched_options),
        lambda: labledger.plan_run(experiment, options).variants,
    )


def _print_plan(plan: RunPlan, expected: Sequence[str], *, as_json: bool) -> None:
    """Print the resolved experiment as YAML, what is expected, and the schedule; or all as JSON."""
    if as_json:
        slots = (slot.as_json() for slot in plan.slots())
        document = {"digest": plan.digest, "resolved": plan.resolved, "schedule": slots}
        out_json_parts({**document, "expected": list(expected)} if expected else document)
        return
    import yaml

    out_lines(yaml.safe_dump(plan.resolved, sort_keys=False, allow_unicode=True))
    out(f"# digest {plan.digest}")
    out(f"# grader: {plan.sealing}")
    for line in expected:
        out(f"# {line}")
    out(f"# schedule: {counted(plan.total_slots, 'slot')}")
    for slot in islice(plan.slots(), _MAX_PRINTED_SLOTS):
        out(f"# {slot.schedule_idx:6}  {slot.variant_id}  {slot.task_id}  {slot.repl_idx}")
    if plan.total_slots > _MAX_PRINTED_SLOTS:
        out(f"# … and {plan.total_slots - _MAX_PRINTED_SLOTS} more; --json prints them all")
    say("nothing was run")


def resume(
    run_id: arguments.RunId,
    *,
    frozen: arguments.Frozen = False,
    take_over: arguments.TakeOver = False,
    running: Running,
) -> None:
    """Continue an interrupted run.

    No trial that was started is run again: trials that have ended are collected, and running ones
    are waited for. A run that another coordinator owns is refused. With --take-over, the lease of
    that coordinator is no longer extended, and this command waits until it ends.
    """
    running.watch(
        running.options(frozen=frozen, take_over=take_over),
        lambda watched_options: labledger.resume(run_id, watched_options),
        lambda: variants_of(run_id, running.lab_dir),
    )


def extend(
    run_id: arguments.RunId,
    *,
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="The experiment with all that the run shall have; by default the file from which "
            "it was started or last extended.",
        ),
    ] = None,
    chosen: Chosen,
    because: Annotated[
        str | None, typer.Option(help="Why the run is extended; stored with the run.")
    ] = None,
    take_over: arguments.TakeOver = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be added, and add nothing.")
    ] = False,
    running: Running,
) -> None:
    """Add tasks, variants or replications to a run, and run them.

    The new slots are appended to the run's schedule, in the experiment's order, and committed
    after those that are there. --limit, --task, --variant and --shard choose all that the run shall
    have; without them, that is the whole experiment. What the run has run must be the same in the
    experiment; what differs is named otherwise. `labledger resume` continues if this is killed.
    """
    options = running.options(
        chosen,
        take_over=take_over,
    )
    if dry_run:
        _print_extension(
            labledger.plan_extension(run_id, experiment, options), as_json=running.json
        )
        return

    def variants() -> list[str]:
        new = labledger.plan_extension(run_id, experiment, options).variants
        return [*variants_of(run_id, running.lab_dir), *new]

    running.watch(
        options,
        lambda watched_options: labledger.extend(
            run_id, experiment, watched_options, because=because
        ),
        variants,
    )


def _print_extension(extension: RunExtension, *, as_json: bool) -> None:
    """Print what an extension would add: counts, new variants and tasks, and slots; or JSON."""
    if as_json:
        slots = (slot.as_json() for slot in extension.slots())
        out_json_parts({**extension.as_json(), "schedule": slots})
        return
    out(f"# {counted(extension.slot_count, 'slot')} would be added to {extension.run_id}")
    for name in extension.variants:
        out(f"# new variant {name}")
    if extension.tasks:
        out(f"# {counted(len(extension.tasks), 'new task')}")
    out(f"# digest {extension.digest}")
    for slot in islice(extension.slots(), _MAX_PRINTED_SLOTS):
        out(f"# {slot.schedule_idx:6}  {slot.variant_id}  {slot.task_id}  {slot.repl_idx}")
    if extension.slot_count > _MAX_PRINTED_SLOTS:
        rest = extension.slot_count - _MAX_PRINTED_SLOTS
        out(f"# … and {rest} more; --json prints them all")
    say("nothing was added")


def regrade(
    run_id: arguments.RunId,
    *,
    grader: Annotated[
        Path,
        typer.Option(
            help="An experiment file, whose grader is used, or a script that replaces the run's "
            "own grader.",
        ),
    ],
    again: Annotated[
        bool, typer.Option("--again", help="Grade even if this grader has graded the run before.")
    ] = False,
    running: Running,
) -> None:
    """Grade the stored trials of a complete run with another grader. Runs no agent.

    Each trial's workspace, result and events are put into a fresh container, where the grader
    runs. The new scores are the run's next generation; the old ones stay. Views, comparisons and
    reports use the new generation once it is complete. `labledger resume` continues an interrupted
    regrading by its own run id. A regrading stops, and is not completed, if more than half of its
    slots are grade errors; --max-error-rate sets another share.
    """
    options = running.options()
    running.watch(
        options,
        lambda watched_options: labledger.regrade(run_id, grader, watched_options, again=again),
        lambda: variants_of(run_id, running.lab_dir),
    )


def register_plan(app: typer.Typer) -> None:
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
