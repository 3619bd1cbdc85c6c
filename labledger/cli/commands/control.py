"""Commands that change a run in progress: pause, unpause, set, stop and cancel.

Each command writes a request, waits a few seconds for the run's coordinator to apply it, and prints
what happens and when. The coordinator may be another process or belong to another user.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import add_lab_dir, confirm, out, out_json, say
from labledger.cli.option_groups import run_options, with_option_groups
from labledger.errors import Exit
from labledger.text.words import counted

if TYPE_CHECKING:
    from labledger.results import ControlReply, JsonObject

_WAIT_S = 5.0

Variants = Annotated[list[str] | None, typer.Option("--variant", help="A variant; repeatable.")]
Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="GLOB", help="Tasks whose id matches this glob; repeatable."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME[/ID]", help="A host of a cluster; repeatable."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The options that all these commands share, as they were typed."""

    because: Annotated[str | None, typer.Option(help="Why; stored with the run.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until the coordinator has applied it.")
    ] = False
    yes: arguments.Yes = False
    lab_dir: arguments.LabDir = None
    json: arguments.Json = False

    def reply(self, run_id: str, kind: str, what: JsonObject, *, dry_run: bool) -> ControlReply:
        """Send a request to a run, and return the reply."""
        return labledger.request_control(
            run_id,
            kind,
            what,
            because=self.because,
            wait_s=0.0 if self.no_wait else _WAIT_S,
            dry_run=dry_run,
            lab_dir=self.lab_dir,
        )

    def ask(self, run_id: str, kind: str, what: JsonObject) -> None:
        """Send a request to a run, and print the reply."""
        reply = self.reply(run_id, kind, what, dry_run=self.dry_run)
        if self.json:
            out_json(reply.as_json())
            return
        out(f"without --dry-run: {reply.text}" if self.dry_run else reply.text)
        request = reply.request
        if request is None:
            return
        status = add_lab_dir(f"labledger status {reply.run_id}", self.lab_dir)
        if request.outcome is None:
            event = "its coordinator applies it" if reply.owned else "the run is resumed"
            say(f"request {request.number} waits until {event}; `{status}` shows it")
        elif request.outcome.get("refused") or request.outcome["text"]:
            text = request.outcome["text"]
            say(f"request {request.number} applied at {request.applied_at}: {text}")


@with_option_groups("yes")
def pause(
    run_id: arguments.RunId,
    *,
    variant: Variants = None,
    task: Tasks = None,
    host: Hosts = None,
    asking: Asking,
) -> None:
    """Start no more trials of a run, or of some variants, tasks or hosts, until `unpause`.

    Running trials finish. A pause outlives the coordinator: it also holds when the run is resumed.
    """
    asking.ask(run_id, "pause", _named(variant=variant, task=task, host=host))


@with_option_groups("yes")
def unpause(
    run_id: arguments.RunId,
    *,
    variant: Variants = None,
    task: Tasks = None,
    host: Hosts = None,
    everything: Annotated[bool, typer.Option("--all", help="End every pause.")] = False,
    asking: Asking,
) -> None:
    """End a pause of a run, or of the named variants, tasks or hosts."""
    what = _named(variant=variant, task=task, host=host) | ({"all": True} if everything else {})
    asking.ask(run_id, "unpause", what)


@with_option_groups("yes")
def set_limits(
    run_id: arguments.RunId,
    *,
    max_concurrency: Annotated[
        str | None,
        typer.Option("--max-concurrency", "-n", metavar="N|none", help="Trials at once."),
    ] = None,
    at_most_per_host: Annotated[
        str | None,
        typer.Option(metavar="N|none", help="Trials at once on each host of a cluster."),
    ] = None,
    budget_usd: arguments.BudgetUsd = None,
    budget_tokens: arguments.BudgetTokens = None,
    asking: Asking,
) -> None:
    """Change how many trials of a run are in progress at once, and how much it may spend."""
    what: JsonObject = {}
    if max_concurrency is not None:
        what["max_concurrency"] = arguments.parse_count("--max-concurrency", max_concurrency)
    if at_most_per_host is not None:
        what["at_most_per_host"] = arguments.parse_count("--at-most-per-host", at_most_per_host)
    limits = run_options(**arguments.parse_budgets(budget_usd, budget_tokens)).budget
    budget = {kind: None if math.isinf(limit) else limit for kind, limit in limits.items()}
    what |= {"budget": budget} if budget else {}
    asking.ask(run_id, "set", what)


@with_option_groups("yes")
def stop(
    run_id: arguments.RunId,
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Kill the containers; their trials run again on resume.")
    ] = False,
    asking: Asking,
) -> None:
    """Stop a run that another process runs, as Ctrl-C at its terminal does."""
    asking.ask(run_id, "stop", {"now": True} if now else {})


@with_option_groups()
def cancel(
    run_id: arguments.RunId,
    *,
    slot: Annotated[
        list[int] | None, typer.Option("--slot", help="A trial's number; repeatable.")
    ] = None,
    variant: Variants = None,
    asking: Asking,
) -> None:
    """Cancel trials of a run for good. A running trial is killed, and counts as not passed."""
    what = _named(slot=slot, variant=variant)
    if not asking.dry_run:
        preview = asking.reply(run_id, "cancel", what, dry_run=True)
        if preview.slots and not asking.yes:
            say(preview.text)
        question = f"cancel {counted(preview.slots, 'trial')} of {run_id} for good?"
        if preview.slots and not confirm(question, yes=asking.yes):
            say("nothing was cancelled")
            raise typer.Exit(int(Exit.INCOMPLETE))
    asking.ask(run_id, "cancel", what)


def _named(**names: list[Any] | None) -> JsonObject:
    return {key: list(values) for key, values in names.items() if values}
