"""`labledger clean`: containers of this ledger that nobody needs any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labledger import clock
from labledger.errors import RunNotFound
from labledger.ledger.model import RunInfo, StagedAttempt
from labledger.ledger.reader import LedgerReader
from labledger.runner.lab import Lab
from labledger.runner.lease import holder_is_dead
from labledger.runner.recovery import is_durable
from labledger.trial import traces
from labledger.trial.container import thread_engine
from labledger.trial.contract import Labels, trial_folder

_CLEANED = "`labledger clean --unfinished` removed its container"


@dataclass(frozen=True, slots=True)
class Found:
    """A container that carries this ledger's label, and what becomes of it."""

    name: str
    run_id: str
    remove: bool
    why: str
    attempt: tuple[int, int] | None = None
    """Slot and attempt, where that is to be run again."""


def clean(
    lab: Lab, run_id: str | None = None, *, dry_run: bool = False, unfinished: bool = False
) -> list[Found]:
    """Remove this ledger's containers that belong to no live run and hold nothing that counts.

    With `unfinished`, also those that `labledger resume` would go on with: their trials are run
    again then. Containers without this ledger's label, and those of a run that a live coordinator
    owns, are never touched. Raises `RunNotFound`, and `EngineUnavailable`.
    """
    engine = thread_engine()
    with LedgerReader.open(lab.ledger) as reader:
        labels = {Labels.LEDGER: reader.ledger_id}
        if run_id is not None:
            labels[Labels.RUN] = reader.run(run_id).run_id
        runs: dict[str, _Run] = {}
        found = []
        for name, given in engine.names_with(labels):
            run = runs.setdefault(given[Labels.RUN], _Run.read(reader, given[Labels.RUN]))
            found.append(_judge(name, given, run, unfinished=unfinished))
    for container in found:
        if container.remove and not dry_run:
            if container.attempt is not None:
                folder = lab.run_folder(container.run_id)
                traces.withdraw(trial_folder(folder, *container.attempt), _CLEANED)
            engine.remove(container.name)
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """What the ledger knows of a container's run."""

    info: RunInfo | None
    staged: Mapping[int, StagedAttempt]

    @classmethod
    def read(cls, reader: LedgerReader, run_id: str) -> _Run:
        try:
            return cls(reader.run(run_id), reader.staged(run_id))
        except RunNotFound:
            return cls(None, {})


def _judge(name: str, given: Mapping[str, str], run: _Run, *, unfinished: bool) -> Found:
    run_id = given[Labels.RUN]
    if run.info is None:
        return Found(name, run_id, True, "its run is not in the ledger")
    lease = run.info.lease
    if lease is not None and lease.expires_at > clock.utc_now() and not holder_is_dead(lease):
        owner = f"process {lease.owner.pid} on {lease.owner.machine}"
        return Found(name, run_id, False, f"its run belongs to {owner}")
    if is_durable(int(given[Labels.SLOT]), int(given[Labels.ATTEMPT]), run.info, run.staged):
        return Found(name, run_id, True, "its result is in the ledger")
    if unfinished:
        attempt = int(given[Labels.SLOT]), int(given[Labels.ATTEMPT])
        return Found(name, run_id, True, "its trial will be run again", attempt)
    why = f"`labledger resume {run_id}` goes on with it; --unfinished removes it"
    return Found(name, run_id, False, why)
