"""`labledger clean`: containers of this ledger that nobody needs any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labledger import clock
from labledger.errors import RunNotFound
from labledger.ledger.model import RunInfo, StagedAttempt
from labledger.ledger.reader import LedgerReader
from labledger.runner.lab import LabFolder
from labledger.runner.lease import holder_is_dead
from labledger.runner.recovery import is_durable
from labledger.trial import traces
from labledger.trial.container import ListedContainer, thread_engine
from labledger.trial.contract import Labels, trial_folder
from labledger.trial.identity import attempt_of

_CLEANED = "`labledger clean --unfinished` removed its container"


@dataclass(frozen=True, slots=True)
class Found:
    """A container that carries this ledger's label, and what becomes of it."""

    name: str
    container_id: str
    run_id: str
    remove: bool
    why: str
    attempt: tuple[int, int] | None = None
    """Slot and attempt, where that is to be run again."""


def clean(
    lab: LabFolder, run_id: str | None = None, *, dry_run: bool = False, unfinished: bool = False
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
        for container in engine.containers_with_labels(labels):
            name = container.labels.get(Labels.RUN, "")
            if name not in runs:
                runs[name] = _Run.read(reader, name)
            found.append(_judge(container, runs[name], unfinished=unfinished))
    for judged in found:
        if judged.remove and not dry_run:
            if judged.attempt is not None:
                folder = lab.run_folder(judged.run_id)
                traces.record_cancellation(trial_folder(folder, *judged.attempt), _CLEANED)
            engine.remove(judged.container_id)
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


def _judge(container: ListedContainer, run: _Run, *, unfinished: bool) -> Found:
    run_id = container.labels.get(Labels.RUN, "")

    def found(*, remove: bool, why: str, begin_again: tuple[int, int] | None = None) -> Found:
        return Found(container.name, container.container_id, run_id, remove, why, begin_again)

    attempt = attempt_of(container.labels)
    if attempt is None:
        return found(remove=False, why="it lacks the labels of a run, a slot and an attempt")
    if run.info is None:
        return found(remove=True, why="its run is not in the ledger")
    lease = run.info.lease
    if lease is not None and lease.expires_at > clock.utc_now() and not holder_is_dead(lease):
        owner = f"process {lease.owner.pid} on {lease.owner.machine}"
        return found(remove=False, why=f"its run belongs to {owner}")
    if is_durable(*attempt, run.info, run.staged):
        return found(remove=True, why="its result is in the ledger")
    if unfinished:
        return found(remove=True, why="its trial will be run again", begin_again=attempt)
    why = f"`labledger resume {run_id}` goes on with it; --unfinished removes it"
    return found(remove=False, why=why)
