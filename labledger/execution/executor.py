"""`TrialExecutor`: what a coordinator asks of whatever runs its trials, and the rules of it.

Implemented by `local_executor` (threads of this process) and by executors for many hosts. The
contract suite `tests/integration/test_executor_contract.py` runs over each of them.

Ownership. An attempt belongs to one host, for ever: `place` chooses it, the coordinator journals
slot, attempt, container name and host in one transaction, and only then calls `submit`. No executor
ever runs an attempt on another host than `spec.host`, and none starts one twice: a submitted
attempt with `container_may_exist` is adopted, not repeated, if anything was started for it.

Durability. An executor keeps everything of an attempt (container, folder, result) until `remove` or
`cancel` is called for it: `remove` is the acknowledgement that the result is durable here. If the
process that uses an executor dies at any time, another executor for the same run, asked to `submit`
the same attempts, returns the same results. The artifacts that a result refers to are in the
coordinator's store, synced, before its future is set.

Threads. Every method is called by the coordinator's thread alone, and none waits for a trial.
Futures are set by threads of the executor. A remote executor needs no thread and no socket for each
trial in flight, and never raises `EngineUnavailable` or `DiskFull` for the trouble of one host: it
keeps the attempt, reports a `problem` of that host, and places nothing there.
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
"""A host with more is taken for a mistake."""
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}/[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class HostState:
    """A host of an executor, as it was last seen."""

    name: str
    """What the dispatch journal calls it: this machine's node name, or `NAME/IDPREFIX`."""
    host_id: str
    """Identifies the host durably; empty for this machine."""
    slots: int
    """How many trials it runs at once."""
    busy: int
    """How many of them are taken, by trials of any run."""
    images: frozenset[str] = frozenset()
    """The ids (`sha256:…`) of the images that it has."""
    inputs: frozenset[str] = frozenset()
    """The digests of the workspaces and files that it has."""
    free_bytes: int | None = None
    """Free bytes on the disk of its trials; None if not known."""
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    """What its engine offers to containers in all; None if not known. It is not divided among
    trials: each may use what it asks for."""
    ignores_storage: bool = False
    """Whether its engine accepts `runtime.resources.storage`, and ignores it."""
    labledger_version: str = ""
    last_seen: str = ""
    """When it last answered, as the time of this machine (ISO 8601, UTC); empty if never."""
    problem: str | None = None
    """Why nothing is placed on it, as a sentence; None if trials may be."""

    def find_fault(self) -> str | None:
        """Return which of its facts cannot be true; None if all can."""
        if not _HOST_NAME.fullmatch(self.name) or not self.host_id.startswith(self.name[-8:]):
            return f"that its name is {self.name[:80]!r} and its id {self.host_id[:80]!r}"
        if not 0 < self.slots <= MAX_HOST_SLOTS or self.busy < 0:
            return f"that {self.busy} of {self.slots} slots are busy"
        return None


@dataclass(frozen=True, slots=True)
class RunRecords:
    """What the ledger knows of a run's attempts, for a cleanup of what they left."""

    ledger_id: str
    run_id: str
    run_dir: Path
    """The run folder on this machine."""
    is_durable: Callable[[int, int], bool]
    """Called with slot and attempt. Whether its result is committed or staged."""
    keeps_folder: Callable[[int, int], bool]
    """Called with slot and attempt of a durable one. Whether its trial folder is retained."""


MAX_PREPARED = 4
"""How many further containers may be prepared while others run."""


def capacity_of(width: int) -> int:
    """Return how many attempts a machine takes that runs `width` at once, and prepares a few."""
    return width + min(width, MAX_PREPARED)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many attempts of a run may be placed, and where."""

    max_concurrency: int | None = None
    """How many trials run at once; None for as many as the hosts take."""
    at_most_per_host: int | None = None
    """How many attempts a host of a cluster has at once; None for as many as it takes."""
    is_closed: Callable[[str], bool] = lambda _: False
    """Called with a host's name. Whether nothing may be placed there."""


class TrialExecutor(Protocol):
    """Runs the attempts of one run. See the module for the rules that every executor keeps."""

    @property
    def width(self) -> int:
        """How many trials run at once, over all hosts. May change while hosts come and go."""

    @property
    def capacity(self) -> int:
        """How many attempts may be submitted at once: those that run, and a few that prepare.

        Hosts that are closed (`Limits`) count: what had started there is submitted to be collected.
        """

    @property
    def running(self) -> int:
        """How many submitted attempts run now, as far as is known: prepared ones do not."""

    @property
    def last_start_created(self) -> float:
        """When the newest container that could be started was created, by the monotonic clock."""

    @property
    def may_start(self) -> bool:
        """Whether this process certainly still owns the run."""

    @property
    def has_room(self) -> bool:
        """Whether some host could take another attempt now, if it asked for little enough."""

    def place(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt with the host on which it will run; None if none has room now.

        Whether there is room depends on what the attempt asks for alone (`needs_of`),
        and on its image: a host that lacks it has room for one such attempt until it has it.
        An attempt that has a host keeps it, whether or not that host has room or answers. Room is
        reserved, once for each attempt, until its future ends. What the host's own machine must
        know before the dispatch is journaled is durable when this returns.
        """

    def submit(self, spec: AttemptSpec) -> Future[AttemptResult]:
        """Run a placed attempt. Its dispatch must be journaled already."""

    def remove(self, spec: AttemptSpec, *, keep_folder: bool) -> Future[None]:
        """Remove what an attempt left, except its folder if `keep_folder`: its result is durable.

        The future may end when the removal is certain to happen.
        """

    def cancel(self, spec: AttemptSpec, reason: str) -> Future[None]:
        """Record why an attempt will run again, and remove its container and folder."""

    def kill(self, spec: AttemptSpec) -> None:
        """Kill the containers of an attempt, if there are any, and start none for it any more.

        Raises `LabLedgerError`. It may be called before `submit`, and again.
        """

    def recall(self, spec: AttemptSpec) -> None:
        """Let a submitted attempt not start, if it has not: its future raises `StartRefused`.

        Submitted again, it may.
        """

    def has_started(self, spec: AttemptSpec) -> bool:
        """Return whether a container has been started for an attempt; False if it is unknown."""

    def clean_up(self, run: RunRecords) -> list[str]:
        """Remove the containers, folders and notes of attempts whose results are durable.

        Return a warning for each thing that could not be removed. It is left for the next cleanup.
        """

    def restart_notices(self) -> list[tuple[AttemptSpec, str]]:
        """Return the attempts that were started again since the last call, each with the reason."""

    def paused_attempts(self) -> list[AttemptSpec]:
        """Return the attempts whose containers were seen paused since the last call."""

    def warnings(self) -> list[str]:
        """Return what a person should know of the hosts and has not been told since the last call.

        One sentence each, such as that a host does not answer.
        """

    def image_id(self, ref: str) -> str | None:
        """Return the id of an image on the hosts, None if none has it.

        Raises `EngineUnavailable` if the hosts' engine is this machine's and does not answer.
        """

    def hosts(self) -> list[HostState]:
        """Return the hosts of this run, by name."""

    def lose_host(self, host: str, because: str) -> None:
        """End every open attempt of a host that somebody has declared lost.

        The future of each raises `errors.HostLost`, and so does that of each attempt of this host
        that is submitted later, as soon as the host certainly starts no container any more: it was
        told so, or the time that it was granted has run out. It is granted none from now on, and
        what it had prepared is removed. Nothing that the host delivers afterwards is accepted,
        nothing is placed on it, and `remove` of its attempts ends at once.
        """

    def limit(self, limits: Limits) -> None:
        """Place further attempts within other limits. What is placed already goes on."""

    def stop_cause(self, patience_s: float) -> str | None:
        """Return why the run cannot continue for now: hosts were unreachable for `patience_s`.

        None if an open attempt or a removal is on a host that answers, or if none is open and some
        host answers, or all hosts are closed. The sentence says which slots wait for which host.
        Called only while the coordinator has nothing to commit and nothing that it can place.
        """

    def stop_starting(self) -> None:
        """Start no further container. Running trials continue."""

    def allow_starts_until(self, unix_time: float) -> None:
        """Allow containers to be started or changed until this time at the latest."""

    def abandon(self) -> None:
        """Stop waiting for running trials. Their containers continue without this process."""

    def shutdown(self) -> None:
        """Start no further container, and return when every trial and every removal has ended."""

    def close(self) -> None:
        """Close every connection. Called once, after `shutdown` if anything was submitted."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the containers of a trial ask of a host, of each the most; None for no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    """At least so many: `all` asks for one."""
    limits_storage: bool = False

    @classmethod
    def of_trial(cls, settings: TrialSettings) -> Needs:
        """Return what the trials with some settings ask for."""
        resources = [container.runtime.resources for container in settings.of_containers()]
        gpus = [1 if each.gpus == "all" else int(each.gpus or 0) for each in resources]
        return cls(
            max((each.cpus for each in resources if each.cpus is not None), default=None),
            max((n for each in resources if (n := each.memory_bytes) is not None), default=None),
            max(gpus),
            any(each.storage_bytes is not None for each in resources),
        )

    def are_met_by(self, host: HostState) -> bool:
        """Return whether a host offers so much in all and keeps the limits, as far as is known."""
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
    """Return what an attempt asks of its host."""
    return Needs.of_trial(spec.settings)


def _is_enough(offered: float | None, asked: float | None) -> bool:
    return asked is None or offered is None or asked <= offered


_KEPT = "kept"
"""The folder for retained trial folders, in the run folder."""


class FolderRetention(StrEnum):
    """Which trial folders are retained."""

    NONE = "none"
    FAILED = "failed"
    """Those of trials that did not complete, or did not pass."""
    ALL = "all"

    def applies_to(self, status: SlotStatus | None, verdict: str | None) -> bool:
        """Return whether the folder of a trial with this status and verdict is retained.

        `status` is None for an attempt that was not committed.
        """
        if self is not FolderRetention.FAILED:
            return self is FolderRetention.ALL
        return not is_clean_pass(status, verdict)


def move_to_kept(trial_folder: Path) -> None:
    """Move a trial folder to `kept/`. Do nothing if it is gone already.

    It holds everything that the container wrote, secrets included, but no files of devices.
    """
    target = trial_folder.parent.parent / _KEPT / trial_folder.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    if trial_folder.exists():
        shutil.rmtree(target, ignore_errors=True)
        remove_device_files(trial_folder)
        trial_folder.rename(target)
