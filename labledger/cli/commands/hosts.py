"""Commands for clusters: worker, and the group `hosts` with declare-lost and make-certificates.

`labledger worker` runs until it is stopped. The other commands print a result of the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import out, out_json, say, table
from labledger.cli.help_pages import CommandLine
from labledger.errors import Exit
from labledger.text.words import counted

if TYPE_CHECKING:
    from labledger.results import ClusterHost

hosts = CommandLine(name="hosts", help="The hosts of a cluster.")


def worker(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS|FILE", help="The address of the Dask scheduler, or a cluster file."
        ),
    ],
    slots: Annotated[int, typer.Option(help="How many trials run at once on this host.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            help="The host's folder for inputs, trial folders and undelivered results; by default "
            "$LABLEDGER_HOST_DIR, or ~/.local/share/labledger/host.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The host's name; by default the machine's. Workers with different names and "
            "folders may share an engine."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            help="How many GPUs its engine offers to containers; by default all NVIDIA GPUs."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="The port on which it listens for the scheduler; 0 for a free one.")
    ] = 0,
    tls_ca: Annotated[Path | None, typer.Option(help="The authority's certificate.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="This worker's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="This worker's key.")] = None,
    insecure: arguments.Insecure = False,
) -> None:
    """Serve this machine as a host of a cluster, until it is stopped.

    It needs a Docker engine. If you stop it, running containers finish, and the next worker of this
    host delivers their results.
    """
    labledger.serve_host(
        cluster,
        slots=slots,
        folder=folder,
        name=name,
        gpus=gpus,
        port=port,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure=insecure,
        report=say,
    )


@hosts.callback(invoke_without_command=True)
def list_hosts(
    ctx: typer.Context,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="ADDRESS|FILE",
            envvar="LABLEDGER_ON",
            help="The cluster: the address of its Dask scheduler, or a cluster file.",
        ),
    ] = None,
    insecure: arguments.Insecure = False,
    json: arguments.Json = False,
) -> None:
    """List the hosts of a cluster with capacity, GPUs, images, disk, version, clock and problem."""
    if ctx.invoked_subcommand is not None:
        return

    if on is None:
        problem = labledger.errors.Problem(
            "--on", "expected the address of a scheduler, or a cluster file"
        )
        raise labledger.errors.InvalidInput("the cluster", [problem])
    listed = labledger.list_hosts(on, insecure=insecure)
    if json:
        out_json([host.as_json() for host in listed])
        return
    columns = (
        "host",
        "trials at once",
        "busy",
        "gpus",
        "images",
        "free disk",
        "version",
        "clock",
        "problem",
    )
    table(columns, [_row(host) for host in listed])


def _row(host: ClusterHost) -> tuple[str, ...]:
    state = host.state
    if state is None:
        return (host.name or host.address, *[""] * 7, host.problem or "")
    free = "" if state.free_bytes is None else f"{state.free_bytes / 1e9:.1f} GB"
    offset = "" if host.clock_offset_s is None else f"{host.clock_offset_s:+.1f} s"
    return (
        state.name,
        str(state.slots),
        str(state.busy),
        "" if state.gpus is None else str(state.gpus),
        str(len(state.images)),
        free,
        state.labledger_version,
        offset,
        host.problem or "",
    )


@hosts.command("declare-lost")
def declare_lost(
    host: Annotated[str, typer.Argument(help="The host, NAME/ID, as `labledger status` shows it.")],
    run: Annotated[str, typer.Option(help="The run for which the host is lost.")],
    because: Annotated[str, typer.Option(help="Why it will not come back; stored with the run.")],
    yes: arguments.Yes = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Declare that a host will not come back to a run. This is final.

    The host's trials without a result end as infra_error (host_lost). They are retried on other
    hosts if design.retry says so. An agent that still runs there may therefore run twice. The run
    refuses results that the host delivers later.
    """
    from labledger import declare_host_lost, open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        slots = ledger.state(run).open_slots
    count = sum(slot_host == host for slot_host in slots.values())
    trials = counted(count, "unfinished trial")
    question = f"{trials} of {run} on {host} will end as host_lost. Declare it lost?"
    if not yes and not _confirmed(question):
        say("nothing was changed; --yes declares it without a question")
        raise typer.Exit(int(Exit.INVALID))
    declare_host_lost(run, host, because, lab_dir=lab_dir)
    say(f"{host} is lost to {run}, which had {trials} there. A live coordinator continues the run;")
    say(f"otherwise `labledger resume {run}` does")


def _confirmed(question: str) -> bool:
    """Ask on the terminal. Without a terminal, the answer is no."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False


@hosts.command("make-certificates")
def make_certificates(
    directory: Annotated[Path, typer.Argument(help="The folder for the files.")],
) -> None:
    """Make the TLS certificates by which scheduler, hosts and coordinators trust each other."""
    for path in labledger.make_certificates(directory):
        out(str(path))
    say()
    say(
        f"next: dask scheduler --protocol tls --port 8786 --no-dashboard "
        f"--tls-ca-file {directory}/ca.pem "
        f"--tls-cert {directory}/scheduler.pem --tls-key {directory}/scheduler-key.pem"
    )
    say("Copy ca.pem and worker*.pem to the hosts; keep ca-key.pem secret.")
