"""Commands that make and run experiments: init, preflight, run, resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labledger.cli import arguments
from labledger.cli.console import out, out_json, print_checks, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from labledger.cli.progress import JsonWatcher, LiveWatcher
    from labledger.runner.options import RunOptions, RunOutcome


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
    from labledger.experiment.scaffold import scaffold

    for path in scaffold(profile, directory, image=image):
        out(str(path))
    say(f"\nnext: labledger run {directory / 'experiment.yaml'}")


def preflight(
    experiment: arguments.Experiment,
    lab_dir: arguments.LabDir = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    json: arguments.Json = False,
    pull: Annotated[bool, typer.Option("--pull", help="Pull images that are not here.")] = False,
) -> None:
    """Check all that a run needs; create nothing."""
    from labledger.runner.launch import check_experiment
    from labledger.runner.options import RunOptions

    path = arguments.experiment_file(experiment)
    options = RunOptions(lab_dir=lab_dir, env=tuple(env or ()), env_files=tuple(env_file or ()))
    found = check_experiment(path, options, pull=pull)
    if json:
        out_json([check.as_json() for check in found.checks])
    else:
        print_checks(found.checks)
    if found.failures:
        raise typer.Exit(int(found.failures[0].exit_code))
    say(f"\nnext: labledger run {experiment}")


def run(
    experiment: arguments.Experiment,
    run_id: Annotated[str | None, typer.Option(help="A name for the run.")] = None,
    max_concurrency: arguments.MaxConcurrency = None,
    limit: arguments.Limit = None,
    task: arguments.Tasks = None,
    variant: arguments.Variants = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.EventsJson = False,
    quiet: arguments.Quiet = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved experiment and the schedule.")
    ] = False,
    fail_under: arguments.FailUnder = None,
    patience: arguments.Patience = 600.0,
    min_free: arguments.MinFree = None,
    max_error_rate: arguments.MaxErrorRate = None,
    budget_usd: arguments.BudgetUsd = None,
    budget_tokens: arguments.BudgetTokens = None,
    keep: arguments.Keep = "none",
    lease_ttl: arguments.LeaseTtl = 30.0,
) -> None:
    """Run an experiment in containers.

    Every variant on every task, as often as its replications say, each trial in a container of
    its own and graded there. Begins with the checks of `preflight`.
    """
    from labledger.runner.keeping import Keep
    from labledger.runner.launch import resolve_experiment, start_run
    from labledger.runner.options import RunOptions
    from labledger.runner.room import MIN_FREE_BYTES

    path = arguments.experiment_file(experiment)
    options = RunOptions(
        lab_dir=lab_dir,
        run_id=run_id,
        max_concurrency=max_concurrency,
        limit=limit,
        tasks=tuple(task or ()),
        variants=tuple(variant or ()),
        env=tuple(env or ()),
        env_files=tuple(env_file or ()),
        patience_s=patience,
        min_free_bytes=arguments.size("--min-free", min_free, MIN_FREE_BYTES),
        max_error_rate=max_error_rate,
        budget_usd=budget_usd,
        budget_tokens=budget_tokens,
        keep=Keep(keep),
        lease_ttl_s=lease_ttl,
    )
    if dry_run:
        from labledger.cli.dry_run import print_plan

        print_plan(resolve_experiment(path, options), as_json=json)
        return

    def variants() -> list[str]:
        document = resolve_experiment(path, options).document
        return [variant["variant_id"] for variant in document["variants"]]

    watched(options, lambda o: start_run(path, o), variants, json, quiet, fail_under)


def resume(
    run_id: arguments.RunId,
    max_concurrency: arguments.MaxConcurrency = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.EventsJson = False,
    quiet: arguments.Quiet = False,
    frozen: Annotated[
        bool,
        typer.Option("--frozen", help="Use the run's own copy where the experiment has changed."),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take it from a coordinator that runs, at its lease's end."
        ),
    ] = False,
    fail_under: arguments.FailUnder = None,
    patience: arguments.Patience = 600.0,
    min_free: arguments.MinFree = None,
    max_error_rate: arguments.MaxErrorRate = None,
    budget_usd: arguments.BudgetUsd = None,
    budget_tokens: arguments.BudgetTokens = None,
    keep: arguments.Keep = "none",
    lease_ttl: arguments.LeaseTtl = 30.0,
) -> None:
    """Go on with an interrupted run.

    Nothing that finished is run again, and nothing that was started: trials that ended are
    collected, those that run are waited for. A run that another coordinator owns is refused;
    with --take-over this waits until that one's lease ends, which no heartbeat puts off any more.
    """
    from labledger.api import open_ledger
    from labledger.runner.keeping import Keep
    from labledger.runner.launch import resume_run
    from labledger.runner.options import RunOptions
    from labledger.runner.room import MIN_FREE_BYTES

    options = RunOptions(
        lab_dir=lab_dir,
        max_concurrency=max_concurrency,
        env=tuple(env or ()),
        env_files=tuple(env_file or ()),
        frozen=frozen,
        patience_s=patience,
        min_free_bytes=arguments.size("--min-free", min_free, MIN_FREE_BYTES),
        max_error_rate=max_error_rate,
        budget_usd=budget_usd,
        budget_tokens=budget_tokens,
        keep=Keep(keep),
        take_over=take_over,
        lease_ttl_s=lease_ttl,
    )

    def variants() -> list[str]:
        with open_ledger(lab_dir=lab_dir) as ledger:
            return [variant.variant_id for variant in ledger.run(run_id).variants]

    watched(options, lambda o: resume_run(run_id, o), variants, json, quiet, fail_under)


def watched(
    options: RunOptions,
    work: Callable[[RunOptions], RunOutcome],
    variants: Callable[[], Sequence[str]],
    as_json: bool,
    quiet: bool,
    fail_under: list[str] | None,
) -> None:
    """Do the work under a display, print its outcome, and leave with its exit code."""
    from labledger.cli.gates import missed, parse_gates, require_known
    from labledger.cli.outcome import print_next, print_outcome
    from labledger.cli.progress import watcher

    gates = parse_gates(fail_under or [])
    if any(gate.variant_id is not None for gate in gates):
        require_known(gates, variants())
    watching: JsonWatcher | LiveWatcher = watcher(as_json=as_json, quiet=quiet)
    with watching:
        outcome = work(options.watched_by(watching))
    misses = missed(gates, outcome.summary)
    if not as_json:
        print_outcome(outcome)
    if not (as_json or quiet):
        print_next(outcome)
    for miss in misses:
        say(f"gate missed: {miss}")
    code = int(outcome.exit_code)
    raise typer.Exit(code or (1 if misses else 0))
