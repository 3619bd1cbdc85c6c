"""The group `notifications`, with send, discard and try.

`send` exits with code 3 if a receiver did not accept a notification that waits for it.
"""

from __future__ import annotations

from typing import Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import out, out_json, table
from labledger.cli.help_pages import CommandLine
from labledger.errors import Exit
from labledger.text.words import counted

notifications = CommandLine(
    name="notifications", help="Notifications about runs for the receivers of --notify."
)


@notifications.callback(invoke_without_command=True)
def list_notifications(
    ctx: typer.Context,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Only of this run.", autocompletion=arguments.complete_run_id
        ),
    ] = None,
    settled: Annotated[
        bool, typer.Option("--all", help="Also list those that were delivered or given up.")
    ] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """List the notifications that wait to be delivered.

    A run's coordinator delivers them while it runs. The next coordinator of any run in the lab
    delivers the rest.
    """
    if ctx.invoked_subcommand is not None:
        return
    listed = labledger.notifications(run, lab_dir=lab_dir, settled=settled)
    if json:
        out_json([notification.as_json() for notification in listed])
        return
    if not listed:
        out("there are no notifications" if settled else "no notification waits to be delivered")
        return
    rows = [
        (item.run_id, item.event, item.happened_at, item.receiver, item.state, _detail(item))
        for item in listed
    ]
    table(("run", "event", "happened at", "receiver", "state", ""), rows)


def _detail(notification: labledger.results.Notification) -> str:
    """Return when a notification was delivered, or why it was not."""
    if notification.delivered_at is not None:
        return notification.delivered_at
    if notification.problem is None:
        return ""
    return f"{notification.problem} ({counted(notification.attempts, 'attempt')})"


@notifications.command()
def send(
    run_id: Annotated[
        str | None,
        typer.Argument(help="Only of this run.", autocompletion=arguments.complete_run_id),
    ] = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Deliver all waiting notifications now.

    Skips runs with a live coordinator, which delivers its own.
    """
    done = labledger.deliver_notifications(
        run_id,
        lab_dir=lab_dir,
        env=arguments.parse_environment(env),
        env_files=tuple(env_file or ()),
    )
    if json:
        out_json(done.as_json())
    else:
        for problem in done.problems:
            out(problem)
        for run in done.left_to_others:
            out(f"skipped run {run}: another process delivers its notifications")
        out(f"delivered {counted(done.accepted, 'notification')}")
    if done.problems:
        raise typer.Exit(int(Exit.INCOMPLETE))


@notifications.command()
def discard(
    run_id: arguments.RunId,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Discard the waiting notifications of a run."""
    number = labledger.discard_notifications(run_id, lab_dir=lab_dir)
    if json:
        out_json({"discarded": number})
    else:
        out(f"discarded {counted(number, 'notification')} of run {run_id}")


@notifications.command("try")
def try_receiver(
    receiver: Annotated[
        str,
        typer.Argument(help="A URL, a $NAME with one, or a command, as for --notify."),
    ],
    env: arguments.Env = None,
) -> None:
    """Send a receiver a notification with the event `test`, and say whether it accepts it."""
    labledger.try_receiver(receiver, env=arguments.parse_environment(env))
    out("the receiver accepted a notification")
