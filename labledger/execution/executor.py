"""`TrialExecutor`: the interface through which a coordinator runs trials, and its rules.

`local_executor` implements it with threads of this process, `hosts` with hosts of a cluster. The
contract suite `tests/integration/test_executor_contract.py` tests both.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from labledger.experiment.trial_settings import TrialSettings
from labledger.files.untrusted_files import remove_device_files
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import SlotStatus
from labledger.records.pass_rate import is_clean_pass
from labledger.text import counted, format_size
from labledger.trial.attempt_spec import AttemptSpec

MAX_HOST_SLOTS = 10_000
"""The most slots of a host. A larger number counts as a mistake."""
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}/[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class HostState:
    """A host of an executor, as last seen."""

    name: str
    """The host's name in the dispatch journal: this machine's node name, or `NAME/IDPREFIX`."""
    host_id: str
    """A durable id of the host; empty for this machine."""
    slots: int
    """How many trials it runs at once."""
    busy: int
    """How many of the slots are taken, by trials of any run."""
    images: frozenset[str] = frozenset()
    """The ids (`sha256:…`) of the host's images."""
    inputs: frozenset[str] = frozenset()
    """The digests of the workspaces and files on the host."""
    free_bytes: int | None = None
    """Free bytes on the disk for its trials, or None if unknown."""
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    """The resources that its engine offers to containers, or None if unknown. They are not divided
    among trials: each trial may use what it asks for."""
    ignores_storage: bool = False
    """Whether its engine accepts `runtime.resources.storage` and ignores it."""
    labledger_version: str = ""
    last_seen: str = ""
    """When it last answered, by this machine's clock (ISO 8601, UTC); empty if never."""
    problem: str | None = None
    """Why no trial is placed on it, as a sentence, or None."""

    def find_fault(self) -> str | None:
        """Return which of its facts cannot be true, or None if all can."""
        if not _HOST_NAME.fullmatch(self.name) or not self.host_id.startswith(self.name[-8:]):
            return f"that its name is {self.name[:80]!r} and its id {self.host_id[:80]!r}"
        if not 0 < self.slots <= MAX_HOST_SLOTS or self.busy < 0:
            return f"that {self.busy} of {self.slots} slots are busy"
        return None


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


MAX_PREPARED = 4
"""How many more containers may be prepared while others run."""


def capacity_of(width: int) -> int:
    """Return how many attempts a machine accepts that runs `width` at once."""
    return width + min(width, MAX_PREPARED)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on how many attempts of a run are placed, and where."""

    max_concurrency: int | None = None
    """How many trials run at once; None for as many as the hosts accept."""
    at_most_per_host: int | None = None
    """How many attempts a host of a cluster has at once; None for as many as it accepts."""
    is_closed: Callable[[str], bool] = lambda _: False
    """Called with a host's name. Returns whether nothing may be placed there."""


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

    def restart_notices(self) -> list[tuple[AttemptSpec, str]]:
        """Return the attempts that were started again since the last call, with the reasons."""

    def paused_attempts(self) -> list[AttemptSpec]:
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


@dataclass(frozen=True, slots=True)
class Needs:
    """The largest needs of a trial's containers, for each resource. None means no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    """The smallest number of GPUs; `all` asks for one."""
    limits_storage: bool = False

    @classmethod
    def of_trial(cls, settings: TrialSettings) -> Needs:
        """Return the needs of trials with these settings."""
        resources = [container.runtime.resources for container in settings.of_containers()]
        gpus = [1 if resource.gpus == "all" else int(resource.gpus or 0) for resource in resources]
        return cls(
            max(
                (resource.cpus for resource in resources if resource.cpus is not None), default=None
            ),
            max(
                (n for resource in resources if (n := resource.memory_bytes) is not None),
                default=None,
            ),
            max(gpus),
            any(resource.storage_bytes is not None for resource in resources),
        )

    def are_met_by(self, host: HostState) -> bool:
        """Return whether a host offers enough and enforces the limits, as far as known."""
        return (
            not (self.limits_storage and host.ignores_storage)
            and _is_enough(host.cpus, self.cpus)
            and _is_enough(host.memory_bytes, self.memory_bytes)
            and _is_enough(host.gpus, self.gpus)
        )

    def __str__(self) -> str:
        cpus = f"{self.cpus:g} CPUs" if self.cpus is not None else "no limit of CPUs"
        memory = "no limit" if self.memory_bytes is None else format_size(self.memory_bytes)
        gpus = f", {counted(self.gpus, 'GPU')}" if self.gpus else ""
        storage = ", a limit of storage" if self.limits_storage else ""
        return f"{cpus}, {memory} of memory{gpus}{storage}"


def needs_of(spec: AttemptSpec) -> Needs:
    """Return the needs of an attempt."""
    return Needs.of_trial(spec.settings)


def _is_enough(offered: float | None, needed: float | None) -> bool:
    return needed is None or offered is None or needed <= offered


_KEPT = "kept"
"""The folder for retained trial folders, in the run folder."""


class FolderRetention(StrEnum):
    """Which trial folders are retained."""

    NONE = "none"
    FAILED = "failed"
    """Folders of trials that did not complete, or did not pass."""
    ALL = "all"

    def applies_to(self, status: SlotStatus | None, verdict: str | None) -> bool:
        """Return whether to retain the folder of a trial with this status and verdict.

        `status` is None for an attempt that was not committed.
        """
        if self is not FolderRetention.FAILED:
            return self is FolderRetention.ALL
        return not is_clean_pass(status, verdict)


def move_to_kept(trial_folder: Path) -> None:
    """Move a trial folder to `kept/`. Do nothing if it is gone already.

    It holds everything that the container wrote, including secrets, but no device files.
    """
    target = trial_folder.parent.parent / _KEPT / trial_folder.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if trial_folder.exists():
        shutil.rmtree(target, ignore_errors=True)
        remove_device_files(trial_folder)
        trial_folder.rename(target)
