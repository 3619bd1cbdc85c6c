"""Hosts of a cluster: serve this machine as one, list them, declare one lost, make certificates.

Dask is needed to serve and to list them, and imported when a function is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labledger.errors import Parameter, require_text
from labledger.execution.executor import HostState
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.records import JsonObject
from labledger.records.json_codec import members, to_json

_MAX_REASON = 1_000


@dataclass(frozen=True, slots=True)
class ClusterHost:
    """A worker of a cluster, and the host that it is."""

    address: str
    state: HostState | None
    """None if it is no host that this version of labledger can use."""
    problem: str | None
    """Why no trial is placed on it now; None if trials may be."""
    clock_offset_s: float | None = None
    """How many seconds its clock is ahead of this machine's."""
    name: str = ""
    """The host's name, also of one that does not answer; empty for a worker that is no host."""

    _JSON = ("name", "address", "clock_offset_s", "problem")

    def as_json(self) -> JsonObject:
        """Return what `labledger hosts --json` prints."""
        state = {"images": [], "inputs": []} if self.state is None else to_json(self.state)
        return {**state, **members(self)}


def list_hosts(on: str, *, insecure: bool = False) -> list[ClusterHost]:
    """Return the hosts of a cluster, by name.

    Args:
        on: The address of a Dask scheduler, such as ``tls://scheduler:8786``, or a cluster file.
        insecure: Connect without TLS to another machine.

    Raises:
        InvalidInput: The address or the file is unusable, or not secure.
        LabLedgerError: The scheduler does not answer.
        ExtraMissing: Dask is not installed.

    Example:
        >>> import labledger
        >>> [host.state.name for host in labledger.list_hosts("tcp://127.0.0.1:8786")]
        ['node-1/1f9c22ab', 'node-2/77d0e4c1']
    """
    from labledger.hosts import connect

    hosts = []
    for found in connect.list_hosts(on, insecure=insecure):
        described = found.described
        if described is None:
            hosts.append(ClusterHost(found.address, None, found.problem, name=found.name))
            continue
        state, offset_s = described.state, round(found.clock_offset_s, 1)
        hosts.append(ClusterHost(found.address, state, state.problem, offset_s, state.name))
    return sorted(hosts, key=lambda host: (host.state is None, host.name, host.address))


def serve_host(
    on: str,
    *,
    slots: int,
    folder: str | Path | None = None,
    name: str | None = None,
    gpus: int | None = None,
    port: int = 0,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    insecure: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve this machine as a host of a cluster, until the process gets SIGINT or SIGTERM.

    Args:
        on: The address of the scheduler, or a cluster file with it.
        slots: How many trials run at once on this host, of all runs together.
        folder: Where the host keeps inputs, trial folders and results that are not acknowledged.
        name: The host's name; by default the machine's.
        gpus: How many GPUs its engine offers to containers; by default NVIDIA's are counted.
        port: The port on which the worker listens for the scheduler; 0 for one that is free.
        tls_ca: The certificate of the authority. All three TLS files, or none, are given.
        tls_cert: This worker's certificate.
        tls_key: This worker's key.
        insecure: Connect without TLS to another machine.
        report: Called with sentences about what happens.

    Raises:
        InvalidInput: An argument is unusable, or the connection would not be secure.
        LabLedgerError: Another worker serves this host.
        EngineUnavailable: No Docker engine answers.
        ExtraMissing: Dask is not installed.

    Example:
        >>> import labledger
        >>> labledger.serve_host("tcp://127.0.0.1:8786", slots=8)
    """
    from labledger.hosts import connect

    tls = tuple(None if path is None else Path(path) for path in (tls_ca, tls_cert, tls_key))
    connect.serve(
        on,
        slots=slots,
        folder=None if folder is None else Path(folder).absolute(),
        name=name,
        gpus=gpus,
        port=port,
        tls=tls,
        insecure=insecure,
        report=report,
    )


def make_certificates(folder: str | Path) -> list[Path]:
    """Make an authority, and a certificate with its key for scheduler, workers and coordinators.

    Args:
        folder: Where the files are written; none of them may exist.

    Returns:
        The files.

    Raises:
        InvalidInput: A file exists.
        ExtraMissing: The library `cryptography` is not installed.

    Example:
        >>> import labledger
        >>> labledger.make_certificates("certificates")[0].name
        'ca.pem'
    """
    from labledger.hosts import cluster_file

    return cluster_file.make_certificates(Path(folder))


def clean_hosts(
    on: str,
    run_id: str | None = None,
    *,
    dry_run: bool = False,
    unfinished: bool = False,
    insecure: bool = False,
    lab_dir: str | Path | None = None,
) -> list[str]:
    """Remove from the hosts of a cluster what attempts with durable results left there.

    Ends also what runs of a run on a host that was declared lost for it and has come back. Runs
    that a live coordinator owns are left alone; a coordinator cleans up its own run.

    Args:
        on: The address of the scheduler, or a cluster file.
        run_id: Only this run; None for every run of the ledger that ran on a cluster.
        dry_run: Only say what would be removed.
        unfinished: Also remove what `labledger resume` would continue with: these trials will run
            again, and their evidence says why.
        insecure: Connect without TLS to another machine.
        lab_dir: The lab folder.

    Returns:
        A sentence for each attempt and each run, and for what could not be removed.

    Raises:
        LedgerMissing: There is no ledger.
        RunNotFound: The ledger holds no such run.
        LabLedgerError: The scheduler does not answer.

    Example:
        >>> import labledger
        >>> labledger.clean_hosts("tcp://127.0.0.1:8786", "demo")
        ['removing slot 3, attempt 1 of demo on node7/3f2a91c0: its result is in the ledger',
         'demo was cleaned up on node7/3f2a91c0']
    """
    from labledger.upkeep import container_cleanup

    return container_cleanup.clean_hosts(
        LabFolder.find(lab_dir),
        on,
        run_id,
        dry_run=dry_run,
        unfinished=unfinished,
        insecure=insecure,
    )


def declare_host_lost(
    run_id: str, host: str, because: str, *, lab_dir: str | Path | None = None
) -> None:
    """Decide that a host of a cluster will not come back to a run. It cannot be taken back.

    Its open attempts become an `infra_error` with the reason `host_lost`, at once if a coordinator
    runs the run, else when it is resumed, and are tried again on other hosts as the experiment's
    `design.retry` says. An agent that ran there may so run a second time. If the host does come
    back, its results are refused.

    Args:
        run_id: The run.
        host: The host's name, as `labledger status` shows it: ``NAME/ID``.
        because: Why, in at most 1,000 characters. It is stored, and part of the attempts' message.
        lab_dir: The lab folder.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: The run has dispatched nothing to that host, or the reason is empty or too
            long.

    Example:
        >>> import labledger
        >>> labledger.declare_host_lost("demo", "node7/3f2a91c0", "its disk is dead")
    """
    from labledger.ledger.writer import LedgerWriter

    require_text("the reason", Parameter("because"), because, _MAX_REASON)
    lab = LabFolder.find(lab_dir)
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        writer.declare_host_lost(run_id, host, because)
