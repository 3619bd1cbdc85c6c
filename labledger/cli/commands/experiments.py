"""Commands that make and run experiments: init, preflight, run, resume."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from labledger.cli.options import arguments
from labledger.cli.options.run_options import Running, runs_trials, variants_of
from labledger.cli.output.console import out, out_json, print_checks, say
from labledger.cli.output.next_steps import to_type


def register(app: typer.Typer) -> None:
    for command in (init, preflight, run, resume):
        app.command()(command)


def init(
    directory: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    profile: Annotated[
        str, typer.Option(help="agent-eval, ab-test, sweep or regression.")
    ] = "agent-eval",
    image: Annotated[str | None, typer.Option(help="The image its trials run in.")] = None,
) -> None:
    """Make a small, commented experiment that runs."""
    from labledger.api import create_experiment

    for path in create_experiment(directory, profile, image=image):
        out(str(path))
    say()
    say(f"next: labledger run {shlex.quote(str(directory / 'experiment.yaml'))}")


def preflight(
    experiment: arguments.Experiment,
    lab_dir: arguments.LabDir = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    json: arguments.Json = False,
    pull: Annotated[bool, typer.Option("--pull", help="Pull images that are not here.")] = False,
) -> None:
    """Check all that a run needs; create nothing."""
    from labledger import api

    options = api.RunOptions(
        lab_dir=lab_dir, env=arguments.environment(env), env_files=tuple(env_file or ())
    )
    results = api.preflight(experiment, options, pull=pull)
    if json:
        out_json([check.as_json() for check in results.checks])
    else:
        print_checks(results.checks)
    if results.failures:
        raise typer.Exit(int(results.failures[0].exit_code))
    say()
    say(f"next: {to_type(f'labledger run {shlex.quote(str(experiment))}', lab_dir)}")


@runs_trials
def run(
    experiment: arguments.Experiment,
    running: Running,
    run_id: Annotated[str | None, typer.Option(help="A name for the run.")] = None,
    limit: arguments.Limit = None,
    task: arguments.Tasks = None,
    variant: arguments.Variants = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved experiment and the schedule.")
    ] = False,
) -> None:
    """Run an experiment in containers.

    Every variant on every task, as often as its replications say, each trial in a container of
    its own and graded there. Begins with the checks of `preflight`.
    """
    from labledger import api

    options = running.options(
        run_id=run_id, limit=limit, tasks=tuple(task or ()), variants=tuple(variant or ())
    )
    if dry_run:
        from labledger.cli.output.dry_run import print_plan

        print_plan(api.plan_run(experiment, options), as_json=running.json)
        return
    running.watch(
        options,
        lambda watched: api.run(experiment, watched),
        lambda: api.plan_run(experiment, options).variants,
    )


@runs_trials
def resume(
    run_id: arguments.RunId,
    running: Running,
    frozen: Annotated[
        bool,
        typer.Option("--frozen", help="Use the run's own copy where the experiment has changed."),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take the run over from another coordinator when its lease ends."
        ),
    ] = False,
) -> None:
    """Continue an interrupted run.

    No trial that was started is run again: trials that have ended are collected, and running ones
    are waited for. A run that another coordinator owns is refused. With --take-over, the other's
    lease is no longer extended, and this command waits until it ends.
    """
    from labledger import api

    running.watch(
        running.options(frozen=frozen, take_over=take_over),
        lambda options: api.resume(run_id, options),
        lambda: variants_of(run_id, running.lab_dir),
    )
