"""Connect to a cluster: the executor of a run on it, and the list of its hosts.

The layers above may use only this module, `cluster_file`, and types of this package. Dask is
imported when the first connection is made.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from labledger import clock
from labledger.errors import InvalidInput, LabLedgerError, Parameter, Problem
from labledger.execution.agent_needs import models_of, providers_of, targets_of
from labledger.experiment.plan import ExperimentPlan
from labledger.files import permissions
from labledger.gateway.provider_permissions import permissions_of
from labledger.host_programs import IsolatedChildren
from labledger.hosts import object_store
from labledger.hosts.cluster_file import Cluster, TlsFiles
from labledger.hosts.coordinator_side import host_cleanup
from labledger.hosts.coordinator_side.cluster_executor import ClusterExecutor, ClusterRun
from labledger.hosts.coordinator_side.host_cleanup import AskedHost, ImagesOfHosts
from labledger.hosts.dask_transport import DaskTransport, require_dask
from labledger.hosts.host_messages import (
    LimitsToTry,
    ModelNeeds,
    StorePlace,
    TriedLimits,
    TriedModels,
    TryLimits,
    TryModels,
)
from labledger.hosts.host_service import HostSettings
from labledger.hosts.host_transport import ClusterConnection, FoundHost

_FIND_S = 5.0
"""How many seconds a list of hosts waits for the first worker."""
_TRY_LIMITS_S = 90.0
"""The time for trying limits on a host, in seconds, which gives up its engine after a minute."""
_TRY_MODELS_S = 90.0
"""The time for checking the models of a host. A command that prints a key may take a minute."""
_T = TypeVar("_T")


def open_executor(on: str, run: ClusterRun, *, insecure: bool = False) -> ClusterExecutor:
    """Return the executor of a run on a cluster. The caller closes it.

    `on` is the address of a scheduler, or a cluster file. Raises `InvalidInput`, `HostUnreachable`
    if the scheduler does not answer, and `ExtraMissing` without Dask, or without fsspec for a
    cluster with an object store.
    """
    require_dask()
    cluster = Cluster.read(on, insecure=insecure)
    connection = connection_to(cluster).open()
    try:
        return ClusterExecutor(connection, run, cluster.object_store).open()
    except BaseException:
        connection.close()
        raise


def try_object_store(on: str, *, insecure: bool = False) -> StorePlace | None:
    """Use the cluster's object store once, and return its place; None if the cluster has none.

    Raises `StoreUnusable`, and as `open_executor` does.
    """
    place = Cluster.read(on, insecure=insecure).object_store
    if place is not None:
        object_store.try_object_store(place)
    return place


def model_needs(
    on: str, plan: ExperimentPlan, *, name: str, insecure: bool = False
) -> ModelNeeds | None:
    """Return the needs of agents with models on each host of a cluster; None if none has models.

    Hosts read keys without asking, so this user must have allowed it. `name` is the argument for
    `labledger allow`. Raises `PermissionNeeded` and `InvalidInput`.
    """
    if not (models := models_of(plan)):
        return None
    permissions.require(permissions_of(providers_of(models)), name)
    are_keys_sent = sends_model_keys(on, insecure=insecure)
    # Agents are installed on this machine, and their files are sent.
    machine = os.uname().machine if targets_of(plan) else None
    return ModelNeeds(tuple(providers_of(models)), are_keys_sent, machine)


def sends_model_keys(on: str, *, insecure: bool = False) -> bool:
    """Return whether the coordinator reads the keys of providers for a cluster's hosts.

    Raises `InvalidInput`.
    """
    return Cluster.read(on, insecure=insecure).sends_model_keys


@contextmanager
def connected(on: str, *, insecure: bool = False) -> Iterator[ClusterConnection]:
    """Provide a connection to the hosts of a cluster. Raises as `open_executor` does."""
    require_dask()
    connection = connection_to(Cluster.read(on, insecure=insecure)).open()
    try:
        yield connection
    finally:
        connection.close()


def list_hosts(on: str, *, insecure: bool = False) -> list[FoundHost]:
    """Return the workers of a cluster, with the hosts that they are. Raises as `connected` does."""
    with connected(on, insecure=insecure) as connection:
        return find_hosts(connection)


def find_hosts(connection: ClusterConnection) -> list[FoundHost]:
    """Return the workers of a cluster. If there are none yet, wait `_FIND_S` seconds for one."""
    deadline = clock.monotonic() + _FIND_S
    while True:
        try:
            addresses = connection.run(connection.transport.addresses()).result()
        except LabLedgerError:
            addresses = {}
        if addresses or clock.monotonic() > deadline:
            return connection.run(connection.describe(addresses)).result()
        clock.sleep(0.1)


def find_images(
    connection: ClusterConnection, hosts: Sequence[FoundHost], refs: Iterable[str], *, pull: bool
) -> ImagesOfHosts:
    """Return the ids of images on hosts. See `host_cleanup.find_images`."""
    return host_cleanup.find_images(connection, _asked(hosts), refs, pull=pull)


def _asked(hosts: Sequence[FoundHost]) -> list[AskedHost]:
    return [
        AskedHost(host.described.state.name, host.address, host.described.session)
        for host in hosts
        if host.described is not None
    ]


def try_limits(
    connection: ClusterConnection, hosts: Sequence[FoundHost], limits: LimitsToTry
) -> list[TriedLimits]:
    """Have hosts try limits. Return a result for each, empty for a host that does not answer."""
    request = partial(TryLimits, limits=limits)
    return _ask_hosts(connection, hosts, request, _TRY_LIMITS_S, TriedLimits())


def try_models(
    connection: ClusterConnection, hosts: Sequence[FoundHost], needs: ModelNeeds
) -> list[TriedModels]:
    """Ask hosts whether agents would have their models. Without an answer, nothing is missing."""
    request = partial(TryModels, needs=needs)
    return _ask_hosts(connection, hosts, request, _TRY_MODELS_S, TriedModels())


def _ask_hosts(
    connection: ClusterConnection,
    hosts: Sequence[FoundHost],
    request: Callable[[str], object],
    timeout_s: float,
    unknown: _T,
) -> list[_T]:
    """Return the reply of each host to a request for its session; `unknown` if there is none."""
    requests = {host.address: request(host.session) for host in _asked(hosts)}
    replies = connection.run(connection.call_all(requests, timeout_s)).result()
    of_hosts = (replies.get(host.address) for host in hosts)
    return [reply if isinstance(reply, type(unknown)) else unknown for reply in of_hosts]


def serve(
    on: str,
    *,
    slots: int,
    folder: Path | None,
    name: str | None,
    gpus: int | None,
    port: int,
    tls: Sequence[Path | None],
    insecure: bool,
    report: Callable[[str], None],
) -> None:
    """Serve this machine as a host until SIGINT or SIGTERM. See `labledger.serve_host`."""
    require_dask()
    # Imported late: it needs the libraries of the extra `dask`.
    from labledger.hosts import dask_host

    for parameter, value, expected, is_possible in (
        ("slots", slots, "1 or more", slots >= 1),
        ("gpus", gpus, "0 or more", gpus is None or gpus >= 0),
        ("port", port, "0 to 65535", 0 <= port < 1 << 16),
    ):
        if not is_possible:
            problem = Problem(Parameter(parameter), f"found {value}; expected {expected}")
            raise InvalidInput("the host", [problem])
    cluster = Cluster.read(on, insecure=insecure, tls=_tls_files(tls))
    if cluster.address is None:
        problem = Problem(on, "a worker needs the `address` of a scheduler")
        raise InvalidInput("the cluster", [problem])
    settings = HostSettings(slots, folder, name, gpus, port)
    dask_host.serve(cluster.address, settings, cluster.security(), report)


def _tls_files(given: Sequence[Path | None]) -> TlsFiles | None:
    paths = [path for path in given if path is not None]
    if not paths:
        return None
    if len(paths) != len(given):
        problem = Problem(
            Parameter("tls_ca"),
            "`tls_ca=`, `tls_cert=` and `tls_key=` belong together: pass all three",
        )
        raise InvalidInput("the files for TLS", [problem])
    return TlsFiles(*paths)


def connection_to(cluster: Cluster) -> ClusterConnection:
    security = cluster.security()
    if cluster.address is not None:
        transport = DaskTransport(cluster.address, security, insecure=cluster.insecure)
        return ClusterConnection(transport)
    # Imported late: it loads Dask.
    from labledger.hosts.dask_host import HostPlugin

    plugin = HostPlugin(cluster.host or HostSettings(slots=1))

    def start() -> Any:
        return _start(cluster, security)

    transport = DaskTransport(cluster.given, security, start, plugin, insecure=cluster.insecure)
    return ClusterConnection(transport)


def _start(cluster: Cluster, security: Any) -> Any:
    """Start the cluster that a file describes.

    Raises `PermissionNeeded` if the user has not allowed it, and `InvalidInput` if it fails.
    """
    permissions.require(cluster.permissions, cluster.given)
    # Imported late: it takes long, and few clusters are started here.
    import dask

    from labledger.hosts.dask_host import LESS_WATCHING

    name = cluster.cluster_class or ""
    module, _, class_name = name.rpartition(".")
    try:
        cluster_class = _cluster_class(module or "distributed", class_name)
        arguments = dict(cluster.arguments)
        arguments.setdefault("security", security)
        # A class that starts processes elsewhere passes them this configuration.
        settings = LESS_WATCHING | {"distributed.scheduler.allowed-failures": 0}
        # Keep this until the process ends: a cluster class may start workers later.
        dask.config.set({_SAFE_PATH_OF_WORKERS: "1"})
        settings |= {} if cluster.tls is None else cluster.tls.settings()
        with dask.config.set(settings), IsolatedChildren():
            started = cluster_class(**arguments)
        if cluster.scale is not None:
            started.scale(cluster.scale)
    except Exception as error:
        message = f"{name} could not be started: {type(error).__name__}: {error}"
        raise InvalidInput("the cluster", [Problem(cluster.given, message)]) from error
    return started


_SAFE_PATH_OF_WORKERS = "distributed.nanny.pre-spawn-environ.PYTHONSAFEPATH"
"""The variable that keeps a worker process from importing files of the working directory."""


def _cluster_class(module: str, name: str) -> Any:
    """Return a class of a library. Raises `TypeError` unless it starts a Dask cluster."""
    import distributed

    member = getattr(importlib.import_module(module), name)
    if member is distributed.SSHCluster:  # In Dask, this one is a function.
        return member
    if not (isinstance(member, type) and hasattr(member, "scale") and hasattr(member, "close")):
        raise TypeError("it is not the class of a cluster")
    return member
