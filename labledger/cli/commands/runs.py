"""Commands that run trials: run, resume, extend, regrade and rerun.

They share the options of `Running`, which also displays the run and raises `typer.Exit` with its
exit code. Before `rerun` runs anything, it lists the trials and their last cost, and asks.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import confirm, out, out_json, out_json_parts, out_lines, say, table
from labledger.cli.option_groups import Chosen, Running, variants_of, with_option_groups
from labledger.errors import InvalidInput, Problem
from labledger.results import BUDGET_PARAMETERS
from labledger.text.figures import duration, usd, whole_number
from labledger.text.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger.results import RerunPlan, RunExtension, RunPlan

_MAX_PRINTED_SLOTS = 200


@with_option_groups()
def run(
    experiment: arguments.Experiment,
    *,
    run_id: arguments.NewRunId = None,
    chosen: Chosen,
    replay: arguments.Replay = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved experiment and the schedule.")
    ] = False,
    running: Running,
) -> None:
    """Run an experiment in containers.

    Runs every variant on every task, with its replications. Each trial runs and is graded in its
    own container. Before any trial starts, `run` makes the checks of `labledger preflight`.
    """
    options = running.options(chosen, run_id=run_id, replay=replay)
    if dry_run:
        planned = labledger.plan_run(experiment, options)
        _print_plan(
            planned, labledger.results.expectation(planned, running.lab_dir), as_json=running.json
        )
        return
    running.watch(
        options,
        lambda watched_options: labledger.run(experiment, watched_options),
        lambda: labledger.plan_run(experiment, options).variants,
    )


def _print_plan(plan: RunPlan, expected: Sequence[str], *, as_json: bool) -> None:
    """Print the resolved experiment as YAML, the expected cost, and the schedule; or all as JSON.

    `expected` holds sentences about the expected cost and duration.
    """
    if as_json:
        slots = (slot.as_json() for slot in plan.slots())
        document = {"digest": plan.digest, "resolved": plan.resolved, "schedule": slots}
        for name, texts in (("warnings", plan.warnings), ("expected", expected)):
            document |= {name: list(texts)} if texts else {}
        out_json_parts(document)
        return
    import yaml

    out_lines(yaml.safe_dump(plan.resolved, sort_keys=False, allow_unicode=True))
    out(f"# digest {plan.digest}")
    out(f"# grader: {plan.sealing}")
    for line in (*labledger.results.untested_sentences(plan.resolved), *expected):
        out(f"# {line}")
    for text in plan.warnings:
        out(f"# warning: {text}")
    out(f"# schedule: {counted(plan.total_slots, 'trial')}")
    _print_slots(plan, plan.total_slots)
    say("nothing was run")


def _print_slots(plan: RunPlan | RunExtension, count: int) -> None:
    """Print the first trials of a schedule, and how many more there are."""
    for slot in islice(plan.slots(), _MAX_PRINTED_SLOTS):
        out(f"# {slot.schedule_idx:6}  {slot.variant_id}  {slot.task_id}  {slot.repl_idx}")
    if count > _MAX_PRINTED_SLOTS:
        out(f"# … and {count - _MAX_PRINTED_SLOTS} more; --json prints them all")


@with_option_groups()
def resume(
    run_id: arguments.RunId,
    *,
    frozen: arguments.Frozen = False,
    take_over: arguments.TakeOver = False,
    running: Running,
) -> None:
    """Continue an interrupted run.

    Starts no trial a second time: it collects the trials that have ended, waits for those that
    still run, and then runs the others. If another coordinator owns the run, `resume` refuses.
    With --take-over it prevents that coordinator from renewing its lease, and waits until the lease
    ends.
    """
    running.watch(
        running.options(frozen=frozen, take_over=take_over),
        lambda watched_options: labledger.resume(run_id, watched_options),
        lambda: variants_of(run_id, running.lab_dir),
    )


@with_option_groups()
def extend(
    run_id: arguments.RunId,
    *,
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="The experiment as the run shall be afterwards; by default the file from which "
            "the run was started or last extended."
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

    The new trials follow the run's existing ones, in the experiment's order. --limit, --task,
    --variant and --shard select everything that the run shall contain afterwards; by default that
    is the whole experiment. Everything that has already run must be unchanged in the experiment.
    Otherwise `extend` names each difference and adds nothing. If the command is interrupted,
    `labledger resume` continues it.
    """
    options = running.options(chosen, take_over=take_over)
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
    """Print what an extension would add: counts, new variants and tasks, and trials; or JSON."""
    if as_json:
        slots = (slot.as_json() for slot in extension.slots())
        out_json_parts({**extension.as_json(), "schedule": slots})
        return
    out(f"# {counted(extension.slot_count, 'trial')} would be added to {extension.run_id}")
    for name in extension.variants:
        out(f"# new variant {name}")
    if extension.tasks:
        out(f"# {counted(len(extension.tasks), 'new task')}")
    out(f"# digest {extension.digest}")
    if extension.looks is not None:
        out(f"# {extension.looks.sentence}")
    _print_slots(extension, extension.slot_count)
    say("nothing was added")


@with_option_groups(*BUDGET_PARAMETERS.values())
def regrade(
    run_id: arguments.RunId,
    *,
    grader: Annotated[
        Path,
        typer.Option(
            help="An experiment file whose grader to use, or a script that replaces the run's own "
            "grader."
        ),
    ],
    again: Annotated[
        bool, typer.Option("--again", help="Grade even if this grader has already graded the run.")
    ] = False,
    running: Running,
) -> None:
    """Grade the stored trials of a complete run with another grader. Runs no agent.

    The grader runs in a fresh container with the stored workspace, result and events of each
    trial. Its scores are a new grading of the run, and earlier gradings stay. Views, comparisons
    and reports use the new grading once it is complete.

    To continue an interrupted regrading, repeat the command, or type `labledger resume` with the
    regrading's own run id.

    If the grader fails or times out on a trial that an earlier grading judged, that trial stays
    ungraded, the earlier grading stays current, and the exit code is 3. The same command then
    grades only the ungraded trials. A regrading stops once half of its trials are errors;
    --max-error-rate sets another share.
    """
    options = running.options()
    running.watch(
        options,
        lambda watched_options: labledger.regrade(run_id, grader, watched_options, again=again),
        lambda: variants_of(run_id, running.lab_dir),
    )


@with_option_groups()
def rerun(
    run_id: arguments.RunId,
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            help="Only trials with this status; repeatable. By default infra_error, setup_error, "
            "and grade_error where the agent succeeded."
        ),
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only trials with this reason; repeatable.")
    ] = None,
    tasks: arguments.Tasks = None,
    variants: arguments.Variants = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Only trials that meet this SQL condition on the view `trials`, such as "
            '"duration_ms > 60000".',
        ),
    ] = None,
    despite_verdict: Annotated[
        bool,
        typer.Option(
            "--despite-verdict",
            help="Also trials that have a verdict or count as not passed. Needs --because. A "
            "comparison with their new results has no verdict and passes no gate.",
        ),
    ] = False,
    because: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Why. With --despite-verdict, every report and comparison of the run begins with "
            "this text.",
        ),
    ] = None,
    yes: arguments.Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would run, and its last cost.")
    ] = False,
    frozen: arguments.Frozen = False,
    running: Running,
) -> None:
    """Run trials again that the environment or the grader left without a verdict.

    Lists these trials with their last cost, and asks. Once a new trial is saved, it counts in place
    of the one that it replaces. Saved trials never change: the view all_trials also has the
    replaced ones. `labledger resume` continues an interrupted rerun.
    """
    selection = labledger.RerunSelection(
        statuses=tuple(status or ()),
        reasons=tuple(reason or ()),
        tasks=tuple(tasks or ()),
        variants=tuple(variants or ()),
        where=where,
        despite_verdict=despite_verdict,
        because=because,
    )
    plan = labledger.plan_rerun(run_id, selection, lab_dir=running.lab_dir)
    if dry_run:
        if running.json:
            out_json(plan.as_json())
        else:
            _print_rerun(plan)
            _say_open_regradings(run_id, running.lab_dir)
        return
    # Print the plan before the question about it.
    if not (running.json or (running.quiet and yes)):
        _print_rerun(plan)
        _say_open_regradings(run_id, running.lab_dir)
    if not plan.slots:
        _require_nothing_left(plan)
        return
    if not confirm(f"run {counted(len(plan.slots), 'trial')} of {run_id} again?", yes=yes):
        say("nothing was changed")
        return
    running.watch(
        running.options(frozen=frozen),
        lambda watched_options: labledger.rerun(plan, watched_options),
        lambda: variants_of(run_id, running.lab_dir),
    )


def _print_rerun(plan: RerunPlan) -> None:
    """Print the chosen trials by variant, status and reason, and their last cost."""
    if plan.slots:
        rows = [(*key, number) for key, number in plan.counts.items()]
        table(("variant", "status", "reason", "trials"), rows, right=("trials",))
        costs = [duration(plan.duration_ms)]
        dollars, tokens = plan.spent["cost_usd"], plan.spent["tokens"]
        if dollars.known:
            costs.append(f"{usd(dollars.total)} ({_known(dollars.known, dollars.unknown)})")
        if tokens.known:
            text = f"{whole_number(tokens.total)} tokens"
            costs.append(f"{text} ({_known(tokens.known, tokens.unknown)})")
        out(f"{counted(len(plan.slots), 'trial')}; last time they took {', '.join(costs)}")
    else:
        out(f"no trial of {plan.run_id} has to run again")
    if plan.selection.despite_verdict and plan.has_results:
        say(
            "some of these trials have results: a comparison with the new ones has no verdict and "
            "passes no gate. A new run of the experiment can decide"
        )
    if plan.pending:
        say(
            f"{counted(plan.pending, 'matching trial')} will already run again: "
            f"`labledger resume {plan.run_id}` runs them"
        )
    if plan.with_verdict:
        say(
            f"left out, because they count in the pass rate: {counted(plan.with_verdict, 'trial')} "
            "(--despite-verdict --because TEXT runs them again, too)"
        )


def _say_open_regradings(run_id: str, lab_dir: Path | None) -> None:
    """Print which regradings of a run are not complete. They need no agent to run again."""
    with labledger.open_ledger(lab_dir=lab_dir) as ledger:
        gradings = ledger.gradings(run_id)
    for grading in gradings[1:]:
        if not grading.complete:
            say(
                f"{grading.run_id} has ungraded trials: `labledger resume {grading.run_id}` grades "
                "them, and runs no agent"
            )


def _known(known: int, unknown: int) -> str:
    return f"known of {known:,} of {counted(known + unknown, 'trial')}"


def _require_nothing_left(plan: RerunPlan) -> None:
    """Raise `InvalidInput` if trials match and were left out only because they have a verdict."""
    selection = plan.selection
    named = selection.statuses or selection.reasons or selection.where
    if named and plan.with_verdict:
        matching = counted(plan.with_verdict, "matching trial")
        message = f"all {matching} count in the pass rate"
        hint = (
            "choosing which results to repeat biases them; to do it anyway, add "
            "--despite-verdict --because TEXT"
        )
        raise InvalidInput("which trials to run again", [Problem("RUN", message, hint=hint)])
