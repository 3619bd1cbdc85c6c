"""`TrialExecutor`: the interface through which a coordinator runs trials, and its rules.

`local_executor` implements it with threads of this process, `hosts` with hosts of a cluster. The
contract suite `tests/integration/test_executor_contract.py` tests both.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labledger.execution.host_state import (
    HostState,
    Limits,
)
from labledger.records.attempt_result import AttemptResult
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.container_spec import ContainerSpec


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The ledger's knowledge of a run's attempts, for a cleanup."""

    ledger_id: str
    run_id: str
    run_dir: Path
    """The run folder on this machine."""
    is_durable: Callable[[int, int], bool]
    """Called with slot and attempt. Returns whether the result is committed or staged."""
    keeps_folder: Callable[[int, int], bool]
    """Called with slot and attempt of a durable result. Returns whether its trial folder is
    retained."""


class TrialExecutor(Protocol):
    """Runs the attempts of one run.

    **Ownership.** An attempt belongs to one host for ever. `place` chooses the host, the
    coordinator journals slot, attempt, container name and host in one transaction, and only then
    calls `submit`. No executor runs an attempt on another host than `spec.host`, and none starts
    one twice. If anything was started for a submitted attempt with `container_may_exist`, the
    executor adopts it.

    **Durability.** An executor keeps container, folder and result of an attempt until `remove` or
    `cancel`. `remove` acknowledges that the result is durable here. If the process dies at any
    time, another executor for the same run returns the same results for the same attempts. Before a
    future is set, the artifacts of its result are synced in the coordinator's store.

    **Threads.** Only the coordinator's thread calls the methods, and no method waits for a trial.
    Threads of the executor set the futures. A remote executor needs no thread and no socket for
    each trial. If one host has trouble, it never raises `EngineUnavailable` or `DiskFull`: it keeps
    the attempt, reports the host's `problem`, and places nothing there.
    """

    @property
    def width(self) -> int:
        """How many trials run at once, over all hosts. May change as hosts come and go."""

    @property
    def capacity(self) -> int:
        """How many attempts may be submitted at once: running ones, and a few that prepare.

        Closed hosts (`Limits`) count, because attempts that had started there are submitted again
        to be collected.
        """

    @property
    def running(self) -> int:
        """How many submitted attempts run now, as far as known. Prepared ones do not run."""

    @property
    def last_start_created(self) -> float:
        """When the newest container that could be started was created, by the monotonic clock."""

    @property
    def may_start(self) -> bool:
        """Whether this process certainly still owns the run."""

    @property
    def has_room(self) -> bool:
        """Whether any host could accept another attempt with small needs now."""

    def place(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt with its host, or None if no host has room now.

        Room depends only on the attempt's needs (`needs_of`) and its image: a host without the
        image has room for one such attempt until it has the image. An attempt that has a host keeps
        it, even if that host has no room or does not answer. Room is reserved once for each
        attempt, until its future ends. When this returns, the host has durably stored everything
        that it must know before the dispatch is journaled.
        """

    def submit(self, spec: AttemptSpec) -> Future[AttemptResult]:
        """Run a placed attempt, whose dispatch must be journaled already."""

    def remove(self, spec: AttemptSpec, *, keep_folder: bool) -> Future[None]:
        """Remove everything of an attempt, except its folder if `keep_folder`.

        The attempt's result must be durable here.

        The future may end when the removal is certain to happen.
        """

    def cancel(self, spec: AttemptSpec, reason: str) -> Future[None]:
        """Record why an attempt will run again, and remove its container and folder."""

    def kill(self, spec: AttemptSpec) -> None:
        """Kill the containers of an attempt, and never start one for it again.

        May be called before `submit`, and repeatedly. Raises `LabLedgerError`.
        """

    def recall(self, spec: AttemptSpec) -> None:
        """Prevent the start of a submitted attempt that has not started.

        Its future then raises `StartRefused`. A further `submit` allows the start again.
        """

    def has_started(self, spec: AttemptSpec) -> bool:
        """Return whether a container has been started for an attempt, or False if unknown."""

    def clean_up(self, run: RunRecords) -> list[str]:
        """Remove the containers, folders and notes of attempts whose results are durable.

        Return a warning for each thing that could not be removed. The next cleanup tries again.
        """

    def restart_notices(self) -> list[tuple[ContainerSpec, str]]:
        """Return the attempts that were started again since the last call, with the reasons."""

    def paused_containers(self) -> list[ContainerSpec]:
        """Return the attempts whose containers were seen paused since the last call."""

    def warnings(self) -> list[str]:
        """Return new messages for the user about the hosts, one sentence each.

        For example, a host does not answer.
        """

    def image_id(self, ref: str) -> str | None:
        """Return the id of an image on the hosts, or None if no host has it.

        Raises `EngineUnavailable` if the hosts use this machine's engine and it does not answer.
        """

    def hosts(self) -> list[HostState]:
        """Return the hosts of this run, by name."""

    def lose_host(self, host: str, because: str) -> None:
        """End every open attempt of a host that a user has declared lost.

        Their futures raise `errors.HostLost` once the host can no longer start a container, either
        because it confirmed this or because its grant expired. Attempts submitted to this host
        later fail the same way. The host gets no further grant, and removes what it had prepared.
        From now on, no result of the host is accepted, nothing is placed on it, and `remove` of its
        attempts ends at once.
        """

    def limit(self, limits: Limits) -> None:
        """Place further attempts within other limits. Placed attempts continue."""

    def stop_cause(self, patience_s: float) -> str | None:
        """Return why the run cannot continue for now: hosts did not answer for `patience_s`.

        Return None if an open attempt or a removal is on a host that answers. Also return None if
        no attempt is open and some host answers, or if all hosts are closed. The sentence says
        which slots wait for which host. Called only while the coordinator can neither commit nor
        place anything.
        """

    def stop_starting(self) -> None:
        """Start no further container. Running trials continue."""

    def allow_starts_until(self, unix_time: float) -> None:
        """Allow containers to be started or changed until this time at the latest."""

    def abandon(self) -> None:
        """Stop waiting for running trials. Their containers continue without this process."""

    def shutdown(self) -> None:
        """Start no further container, and return when all trials and removals have ended."""

    def close(self) -> None:
        """Close every connection. Called once, after `shutdown` if anything was submitted."""
