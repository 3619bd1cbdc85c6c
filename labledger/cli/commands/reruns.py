"""`labledger rerun`: shows which slots would run again and what they cost, asks, and runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger import InvalidInput, Problem
from labledger.cli.options import arguments
from labledger.cli.options.run_options import Running, variants_of, with_option_groups
from labledger.cli.output.console import out, out_json, say, table
from labledger.text import counted, duration, usd, whole_number

if TYPE_CHECKING:
    from labledger import RerunPlan


def register(app: typer.Typer) -> None:
    app.command()(with_option_groups(rerun))


def rerun(
    run_id: arguments.RunId,
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            help="Only slots with this status; repeatable. By default infra_error, setup_error, "
            "and grade_error where the agent succeeded."
        ),
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only slots with this reason; repeatable.")
    ] = None,
    task: arguments.Tasks = None,
    variant: arguments.Variants = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Only slots for which this SQL condition on the view `trials` holds, such as "
            '"duration_ms > 60000".',
        ),
    ] = None,
    despite_verdict: Annotated[
        bool,
        typer.Option(
            "--despite-verdict",
            help="Also slots that have a verdict or count as not passed. Needs --because.",
        ),
    ] = False,
    because: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Why. With --despite-verdict it stands in the head of every report and comparison "
            "of the run.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would run, and what it cost.")
    ] = False,
    frozen: arguments.Frozen = False,
    running: Running,
) -> None:
    """Run slots again that the environment or the grader left without a verdict.

    Shows which slots these are and what they cost last time, and asks. The new slots are appended
    to the run's schedule; from its commit on, each counts in place of the one that it supersedes.
    Nothing that is committed changes: the view all_trials has the superseded trials, too.
    `labledger resume` continues an interrupted rerun.
    """
    from labledger.cli.output.console import confirm

    selection = labledger.RerunSelection(
        statuses=tuple(status or ()),
        reasons=tuple(reason or ()),
        tasks=tuple(task or ()),
        variants=tuple(variant or ()),
        where=where,
        despite_verdict=despite_verdict,
        because=because,
    )
    plan = labledger.plan_rerun(run_id, selection, lab_dir=running.lab_dir)
    if dry_run:
        if running.json:
            out_json(plan.as_json())
        else:
            _print_plan(plan)
        return
    # Whoever is asked sees about what.
    if not (running.json or (running.quiet and yes)):
        _print_plan(plan)
    if not plan.slots:
        _require_nothing_left(plan)
        return
    if not confirm(f"run {counted(len(plan.slots), 'slot')} of {run_id} again?", yes=yes):
        say("nothing was changed")
        return
    running.watch(
        running.options(frozen=frozen),
        lambda watched_options: labledger.rerun(plan, watched_options),
        lambda: variants_of(run_id, running.lab_dir),
    )


def _print_plan(plan: RerunPlan) -> None:
    """Print the chosen slots by variant, status and reason, and what they cost last time."""
    if plan.slots:
        rows = [(*key, number) for key, number in plan.counts.items()]
        table(("variant", "status", "reason", "slots"), rows, right=("slots",))
        costs = [duration(plan.duration_ms)]
        dollars, tokens = plan.spent["cost_usd"], plan.spent["tokens"]
        if dollars.known:
            costs.append(f"{usd(dollars.total)} ({_known(dollars.known, dollars.unknown)})")
        if tokens.known:
            text = f"{whole_number(tokens.total)} tokens"
            costs.append(f"{text} ({_known(tokens.known, tokens.unknown)})")
        out(f"{counted(len(plan.slots), 'slot')}; last time they took {', '.join(costs)}")
    else:
        out(f"no slot of {plan.run_id} is to be run again")
    if plan.pending:
        say(
            f"{counted(plan.pending, 'slot')} that fit are about to be run again already: "
            f"`labledger resume {plan.run_id}` runs them"
        )
    if plan.with_verdict:
        say(
            f"left out, because they count in the pass rate: {counted(plan.with_verdict, 'slot')} "
            "(--despite-verdict --because TEXT runs them again, too)"
        )


def _known(known: int, unknown: int) -> str:
    return f"known of {known:,} of {counted(known + unknown, 'trial')}"


def _require_nothing_left(plan: RerunPlan) -> None:
    """Raise `InvalidInput` if slots fit and were only left out because they have a verdict."""
    selection = plan.selection
    named = selection.statuses or selection.reasons or selection.where
    if named and plan.with_verdict:
        message = f"all {counted(plan.with_verdict, 'slot')} that fit count in the pass rate"
        hint = "choosing which results to repeat biases them; --despite-verdict --because TEXT does"
        raise InvalidInput("which slots to run again", [Problem("RUN", message, hint=hint)])
