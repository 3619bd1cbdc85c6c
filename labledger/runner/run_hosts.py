"""Where a run runs: its settings `on` and `window`, and the hosts of its cluster.

An attempt belongs to one host for ever. So a run with open attempts on this machine does not
continue on a cluster, and a run with open attempts on a cluster does not continue elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from labledger.errors import InvalidInput, Parameter, PreflightFailed, Problem
from labledger.execution.agent_needs import models_of
from labledger.execution.unfinished_slots import UnfinishedSlot
from labledger.experiment.plan import ExperimentPlan
from labledger.files.lab_folder import expand_home
from labledger.ledger.database.run_info import RunInfo
from labledger.runner.run_options import RunOptions

LOCAL = "local"
"""The value of `--on` that means the coordinator's own machine."""

_MAX_LISTED = 10


def given_settings(options: RunOptions) -> dict[str, str]:
    """Return the settings that the options give a run, as the ledger stores them.

    A cluster is stored as its address, or as the absolute path of its file, which each coordinator
    reads again. No secret is stored.
    """
    settings = {}
    if options.placement.on is not None:
        settings["on"] = _cluster_of(options.placement.on)
    if options.placement.window is not None:
        settings["window"] = str(options.placement.window)
    return settings


def given_cluster(options: RunOptions) -> str | None:
    """Return the cluster on which a new run runs; None for this machine."""
    return None if options.placement.on is None else _cluster_of(options.placement.on) or None


def cluster_of(run: RunInfo, options: RunOptions) -> str | None:
    """Return the cluster on which a resumed run continues; None for this machine."""
    return run.on if options.placement.on is None else given_cluster(options)


def _cluster_of(on: str) -> str:
    """Return the cluster that `--on` names; empty for this machine."""
    if on == LOCAL:
        return ""
    return on if "://" in on else os.path.realpath(expand_home(on))


def has_keys(cluster: str | None, plan: ExperimentPlan, *, insecure: bool) -> bool:
    """Return whether this machine reads the keys of model providers that a run needs.

    False for a cluster whose hosts read the keys, and for a cluster file that cannot be read.
    """
    if cluster is None:
        return True
    # Imported late: runs on this machine need none of it.
    from labledger.hosts.connect import sends_model_keys

    try:
        return bool(models_of(plan)) and sends_model_keys(cluster, insecure=insecure)
    except InvalidInput:
        # The check of its hosts says why.
        return False


def require_host(cluster: str, run: RunInfo, plan: ExperimentPlan, *, insecure: bool) -> None:
    """Raise `PreflightFailed`, or the error of the connection, unless a host can run trials."""
    # Imported late: runs on this machine need none of it.
    from labledger.checks.host_checks import find_hosts, say_none_usable

    hosts = find_hosts(cluster, run.images.values(), plan.runtime, insecure=insecure).workers
    states = [host.described.state for host in hosts if host.described is not None]
    if not any(state.problem is None for state in states):
        hint = f"`labledger hosts --on {cluster}` says why; nothing was added to the run"
        message = say_none_usable(cluster, hosts)
        raise PreflightFailed([Problem("hosts", message, hint=hint)])


def require_limits(cluster: str, run: RunInfo, plan: ExperimentPlan, *, insecure: bool) -> None:
    """Raise `PreflightFailed` if no host that answers can enforce the limits of trials.

    The run waits for hosts that do not answer, because they may come back.
    """
    # Imported late: runs on this machine need none of it.
    from labledger.checks.host_checks import find_hosts

    search = find_hosts(cluster, run.images.values(), plan.runtime, insecure=insecure)
    if not search.can_limit:
        raise PreflightFailed([Problem(c.name, c.detail, hint=c.hint) for c in search.ignoring])


def require_reachable_attempts(
    run: RunInfo, cluster: str | None, unfinished: Mapping[int, UnfinishedSlot]
) -> None:
    """Raise `InvalidInput` if the coordinator would not reach open attempts of a run.

    The run is to continue on `cluster`, or on this machine if that is None.
    """
    open_slots = {idx: slot.host for idx, slot in unfinished.items() if slot.may_run}
    lost = {lost_host.host for lost_host in run.lost_hosts}
    remote = {idx: host for idx, host in open_slots.items() if "/" in host and host not in lost}
    local = {idx: host for idx, host in open_slots.items() if "/" not in host}
    if cluster is None and remote:
        text = f"{_slots(remote)} of run {run.run_id} are on hosts of a cluster: {_hosts(remote)}"
        hint = f"`labledger resume {run.run_id} --on ADDRESS` continues them there"
    elif cluster is not None and local:
        text = f"{_slots(local)} of run {run.run_id} started on a machine without a cluster"
        hint = (
            f"`labledger resume {run.run_id} --on {LOCAL}` there ({_hosts(local)}) finishes them; "
            "stop it with Ctrl-C once they have ended, and resume on the cluster"
        )
    else:
        return
    raise InvalidInput("the hosts of the run", [Problem(Parameter("on"), text, hint=hint)])


def hosts_with_open_attempts(unfinished: Mapping[int, UnfinishedSlot]) -> frozenset[str]:
    """Return the hosts of clusters that may have a container of an open attempt."""
    return frozenset(slot.host for slot in unfinished.values() if slot.may_run and "/" in slot.host)


def _slots(idxs: Iterable[int]) -> str:
    ordered = sorted(idxs)
    listed = ", ".join(map(str, ordered[:_MAX_LISTED]))
    more = f" and {len(ordered) - _MAX_LISTED} more" if len(ordered) > _MAX_LISTED else ""
    return f"unfinished trials {listed}{more}"


def _hosts(slots: Mapping[int, str]) -> str:
    return ", ".join(sorted(set(slots.values())))
