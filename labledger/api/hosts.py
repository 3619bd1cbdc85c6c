"""Hosts of a cluster: serve this machine as one, list them, declare one lost, make certificates.

Serving and listing need Dask, which is imported when a function is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labledger.errors import MAX_REASON, Parameter, require_text
from labledger.execution.host_state import HostState
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.records import JsonObject
from labledger.records.json_codec import members, to_json


@dataclass(frozen=True, slots=True)
class ClusterHost:
    """A worker of a cluster, and its host."""

    address: str
    state: HostState | None
    """None if this version of labledger cannot use the worker as a host."""
    problem: str | None
    """Why it gets no trials now; None if it does."""
    clock_offset_s: float | None = None
    """How many seconds its clock is ahead of this machine's."""
    name: str = ""
    """The host's name, even if it does not answer; empty for a worker that is not a host."""

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
    for worker in connect.list_hosts(on, insecure=insecure):
        described = worker.described
        if described is None:
            hosts.append(ClusterHost(worker.address, None, worker.problem, name=worker.name))
            continue
        state, offset_s = described.state, round(worker.clock_offset_s, 1)
        hosts.append(ClusterHost(worker.address, state, state.problem, offset_s, state.name))
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
        slots: How many trials of all runs together run at once on this host.
        folder: Where the host keeps inputs, trial folders and undelivered results.
        name: The host's name; by default the machine's.
        gpus: How many GPUs its engine offers to containers; by default all NVIDIA GPUs.
        port: The port on which the worker listens for the scheduler; 0 for a free one.
        tls_ca: The certificate of the authority. Give all three TLS files, or none.
        tls_cert: This worker's certificate.
        tls_key: This worker's key.
        insecure: Connect without TLS to another machine.
        report: Called with a sentence for each event.

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
    """Make an authority, and certificates with keys for scheduler, workers and coordinators.

    Args:
        folder: The folder for the files. None of the files may exist.

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
    """Remove containers and folders of attempts with durable results from the hosts of a cluster.

    On a host that was declared lost for a run and has come back, this also ends the run's trials.
    It skips runs with a live coordinator, which cleans up its own run.

    Args:
        on: The address of the scheduler, or a cluster file.
        run_id: Only this run; None for every run of the ledger that ran on a cluster.
        dry_run: Only say what would be removed.
        unfinished: Also remove attempts that `labledger resume` would continue. Their trials run
            again, and their evidence says why.
        insecure: Connect without TLS to another machine.
        lab_dir: The lab folder.

    Returns:
        A sentence for each attempt and each run, and for each failed removal.

    Raises:
        LedgerMissing: There is no ledger.
        RunNotFound: The ledger has no such run.
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
    """Declare that a host of a cluster will not come back to a run. This is final.

    Its open attempts end as `infra_error` with the reason `host_lost`, at once or when the run is
    resumed. Other hosts retry them if the experiment's `design.retry` says so. An agent that ran on
    the host may therefore run a second time. If the host comes back, its results are refused.

    Args:
        run_id: The run.
        host: The host's name, as `labledger status` shows it: ``NAME/ID``.
        because: Why, in at most 1,000 characters. Stored, and included in the attempts' message.
        lab_dir: The lab folder.

    Raises:
        RunNotFound: The ledger has no such run.
        InvalidInput: The run never used that host, or the reason is empty or too long.

    Example:
        >>> import labledger
        >>> labledger.declare_host_lost("demo", "node7/3f2a91c0", "its disk is dead")
    """
    from labledger.ledger.writer import LedgerWriter

    require_text("the reason", Parameter("because"), because, MAX_REASON)
    lab = LabFolder.find(lab_dir)
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        writer.declare_host_lost(run_id, host, because)
