"""Kinds of trials: a fresh trial runs all its phases, a regrading runs the grader alone.

An attempt's `TrialKind` is chosen once, when the runner makes its `AttemptSpec`, and answers every
question on which kinds differ: what runs and may end the container, what is there before it, what
is evidence. All other code of a trial is the same for each kind. `FreshTrial` is here;
`regrading.regraded_trial` has the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.docker.engine import Engine
from labledger.errors import LabLedgerError
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult, Phase
from labledger.records.identity import TrialIds
from labledger.trial.contract import PHASE_NAMES, AttemptSpec, ExitStatus
from labledger.trial.evidence import isolation_facts
from labledger.trial.evidence.artifacts import EvidenceCollector
from labledger.trial.evidence.container_exit import ContainerExit
from labledger.trial.evidence.redaction import Redactor
from labledger.workspace.seed import workspace_seed


class EvidenceIncomplete(LabLedgerError):
    """What a trial needs of an earlier container's evidence is not there, or not exact."""


class TrialKind(ABC):
    """The answers of one kind of trials. Immutable; can be pickled."""

    @property
    @abstractmethod
    def phases(self) -> tuple[str, ...]:
        """The phases that can run in the container, in their order."""

    @property
    @abstractmethod
    def exit_statuses(self) -> frozenset[int]:
        """The statuses with which `trial.sh` can end a container that is started once."""

    @property
    @abstractmethod
    def earlier_phases(self) -> Mapping[str, Phase]:
        """The phases that ran before, in another container."""

    @property
    @abstractmethod
    def other_ids(self) -> tuple[TrialIds, ...]:
        """Identities, beside the attempt's own, that outputs in its container may name."""

    @property
    @abstractmethod
    def extension(self) -> JsonObject:
        """What evidence and score say of the kind under `ext`."""

    @abstractmethod
    def is_carried_over(self, spec: AttemptSpec) -> bool:
        """Return True if nothing runs, because the result is that of another trial."""

    def carried_over_result(self, spec: AttemptSpec) -> AttemptResult:
        """Return the result of an attempt for which nothing runs.

        For kinds of which a trial can be carried over.
        """
        raise NotImplementedError

    def incomplete_result(self, spec: AttemptSpec, why: str) -> AttemptResult:
        """Return the result of a trial that raised `EvidenceIncomplete` with the message `why`.

        For kinds that need the evidence of an earlier container.
        """
        raise NotImplementedError

    @abstractmethod
    def fill(self, spec: AttemptSpec, folder: Path) -> None:
        """Fill the workspace of a new trial folder, and what else phases find there.

        Raises `EvidenceIncomplete`.
        """

    @abstractmethod
    def whole_exit(self, ended: ContainerExit) -> ContainerExit:
        """Return how a container ended, with the times of the earlier phases included."""

    @abstractmethod
    def isolation_facts(
        self, engine: Engine, spec: AttemptSpec, ended: ContainerExit
    ) -> JsonObject:
        """Return the isolation facts of a trial whose container has stopped.

        Raises `EngineUnavailable`.
        """

    @abstractmethod
    def evidence(self, spec: AttemptSpec, redactor: Redactor) -> EvidenceCollector:
        """Return the collector that knows where each piece of evidence comes from.

        Its methods raise `EvidenceIncomplete`.
        """


@dataclass(frozen=True, slots=True)
class FreshTrial(TrialKind):
    """A trial that runs every phase in a workspace filled from its seed."""

    @property
    def phases(self) -> tuple[str, ...]:
        return PHASE_NAMES

    @property
    def exit_statuses(self) -> frozenset[int]:
        return ExitStatus.SINGLE_START

    @property
    def earlier_phases(self) -> Mapping[str, Phase]:
        return {}

    @property
    def other_ids(self) -> tuple[TrialIds, ...]:
        return ()

    @property
    def extension(self) -> JsonObject:
        return {}

    def is_carried_over(self, _spec: AttemptSpec) -> bool:
        return False

    def fill(self, spec: AttemptSpec, folder: Path) -> None:
        workspace_seed(spec.task.workspace, spec.plan.store_root).fill(folder / "workspace")

    def whole_exit(self, ended: ContainerExit) -> ContainerExit:
        return ended

    def isolation_facts(
        self, engine: Engine, spec: AttemptSpec, ended: ContainerExit
    ) -> JsonObject:
        return isolation_facts.isolation_facts(engine, spec, ended)

    def evidence(self, spec: AttemptSpec, redactor: Redactor) -> EvidenceCollector:
        return EvidenceCollector(spec, redactor)
