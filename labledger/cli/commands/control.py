"""Commands that ask something of a run: pause, unpause, set, stop and cancel.

Each writes a request, waits a few seconds for the run's owner to apply it, and says what happens
and when. They work while another process, another terminal or another user runs the run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

import labledger
from labledger import Exit
from labledger.cli import arguments
from labledger.cli.console import add_lab_dir, confirm, out, out_json, say
from labledger.text import counted

if TYPE_CHECKING:
    from pathlib import Path

    from labledger import ControlReply, JsonObject

_WAIT_S = 5.0

Variants = Annotated[list[str] | None, typer.Option("--variant", help="A variant; repeatable.")]
Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="GLOB", help="Tasks whose id fits this glob; repeatable."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME[/ID]", help="A host of a cluster; repeatable."),
]
Because = Annotated[str | None, typer.Option(help="Why. It is stored with the run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Do not wait until the run's owner has applied it.")
]


def register(app: typer.Typer) -> None:
    app.command()(pause)
    app.command()(unpause)
    app.command("set")(set_limits)
    app.command()(stop)
    app.command()(cancel)


def pause(
    run_id: arguments.RunId,
    variant: Variants = None,
    task: Tasks = None,
    host: Hosts = None,
    because: Because = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Start no more trials of a run, or of some variants, tasks or hosts, until `unpause`.

    Trials that run go on to their end. What is paused stays so when the run is resumed.
    """
    what = _named(variant=variant, task=task, host=host)
    reply = _ask(run_id, "pause", what, because, lab_dir, dry_run=dry_run, no_wait=no_wait)
    _print(reply, lab_dir, as_json=json, dry_run=dry_run)


def unpause(
    run_id: arguments.RunId,
    variant: Variants = None,
    task: Tasks = None,
    host: Hosts = None,
    everything: Annotated[bool, typer.Option("--all", help="End every pause.")] = False,
    because: Because = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Go on with what was paused: the run, or the variants, tasks or hosts that are named."""
    what = _named(variant=variant, task=task, host=host) | ({"all": True} if everything else {})
    reply = _ask(run_id, "unpause", what, because, lab_dir, dry_run=dry_run, no_wait=no_wait)
    _print(reply, lab_dir, as_json=json, dry_run=dry_run)


def set_limits(
    run_id: arguments.RunId,
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
    because: Because = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Change how many trials of a run go on at once, and what it may spend."""
    what: JsonObject = {}
    for option, text in (
        ("max_concurrency", max_concurrency),
        ("at_most_per_host", at_most_per_host),
    ):
        if text is not None:
            what[option] = arguments.parse_count(f"--{option.replace('_', '-')}", text)
    limits = labledger.RunOptions(
        budget_usd=arguments.parse_budget("--budget-usd", budget_usd),
        budget_tokens=arguments.parse_budget("--budget-tokens", budget_tokens),
    ).budget
    budget = {kind: None if math.isinf(limit) else limit for kind, limit in limits.items()}
    what |= {"budget": budget} if budget else {}
    reply = _ask(run_id, "set", what, because, lab_dir, dry_run=dry_run, no_wait=no_wait)
    _print(reply, lab_dir, as_json=json, dry_run=dry_run)


def stop(
    run_id: arguments.RunId,
    now: Annotated[
        bool, typer.Option("--now", help="Kill the containers; their slots run again on resume.")
    ] = False,
    because: Because = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Stop a run that another process runs, as Ctrl-C at its terminal does."""
    what: JsonObject = {"now": True} if now else {}
    reply = _ask(run_id, "stop", what, because, lab_dir, dry_run=dry_run, no_wait=no_wait)
    _print(reply, lab_dir, as_json=json, dry_run=dry_run)


def cancel(
    run_id: arguments.RunId,
    slot: Annotated[
        list[int] | None, typer.Option("--slot", help="A slot's number; repeatable.")
    ] = None,
    variant: Variants = None,
    because: Because = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    yes: arguments.Yes = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """End slots of a run for good. One whose trial runs is killed, and counts as not passed."""
    what = _named(slot=slot, variant=variant)
    reply = _ask(run_id, "cancel", what, because, lab_dir, dry_run=True, no_wait=True)
    if not dry_run:
        say(reply.text)
        if not confirm(f"cancel {counted(reply.slots, 'slot')} of {run_id}?", yes=yes):
            say("nothing was cancelled")
            raise typer.Exit(int(Exit.INCOMPLETE))
        reply = _ask(run_id, "cancel", what, because, lab_dir, dry_run=False, no_wait=no_wait)
    _print(reply, lab_dir, as_json=json, dry_run=dry_run)


def _named(**names: list[Any] | None) -> JsonObject:
    return {key: list(values) for key, values in names.items() if values}


def _ask(
    run_id: str,
    kind: str,
    what: JsonObject,
    because: str | None,
    lab_dir: Path | None,
    *,
    dry_run: bool,
    no_wait: bool,
) -> ControlReply:
    from labledger import request_control

    wait_s = 0.0 if no_wait else _WAIT_S
    return request_control(
        run_id, kind, what, because=because, wait_s=wait_s, dry_run=dry_run, lab_dir=lab_dir
    )


def _print(reply: ControlReply, lab_dir: Path | None, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        out_json(reply.as_json())
        return
    out(f"would: {reply.text}" if dry_run else reply.text)
    request = reply.request
    if request is None:
        return
    status = add_lab_dir(f"labledger status {reply.run_id}", lab_dir)
    if request.outcome is None:
        say(f"request {request.number} waits for the run's owner; `{status}` shows it")
    elif request.outcome.get("refused") or request.outcome["text"]:
        say(f"request {request.number} applied at {request.applied_at}: {request.outcome['text']}")
