"""Commands about the hosts of runs: hosts declare-lost."""

from __future__ import annotations

from typing import Annotated

import typer

from labledger.cli.options import arguments
from labledger.cli.output.console import say

hosts = typer.Typer(
    help="The hosts on which trials of a cluster run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    hosts.command("declare-lost")(declare_lost)
    app.add_typer(hosts, name="hosts")


def declare_lost(
    host: Annotated[str, typer.Argument(help="The host, NAME/ID, as `labledger status` shows it.")],
    run: Annotated[str, typer.Option(help="The run to which the host is lost.")],
    because: Annotated[str, typer.Option(help="Why it will not come back; this is stored.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Decide that a host will not come back to a run. It cannot be taken back.

    Its open trials end as infra_error (host_lost) and are tried again on other hosts, as
    design.retry says. An agent that runs there may so run twice. What the host still delivers is
    refused.
    """
    from labledger.api import Exit, declare_host_lost, open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        slots = ledger.state(run).open_slots
    count = sum(each == host for each in slots.values())
    question = f"{count} open trials of {run} on {host} will end as host_lost. Declare it lost?"
    if not yes and not _confirmed(question):
        say("nothing was changed; --yes declares it without a question")
        raise typer.Exit(int(Exit.INVALID))
    declare_host_lost(run, host, because, lab_dir=lab_dir)
    say(f"{host} is lost to {run}: {count} open trials; `labledger resume {run}` continues the run")


def _confirmed(question: str) -> bool:
    """Ask on the terminal; without one, the answer is no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False
