"""Kinds of trials: a fresh trial runs all its phases, a regrading runs the grader alone.

A `TrialKind` is chosen when the `AttemptSpec` is made. Everything in which kinds differ is a method
of it: which phases run, which exit statuses are possible, how the trial folder is filled, what is
evidence. All other code of a trial is the same for each kind. This module defines `FreshTrial`, and
`regrading.regraded_trial` defines `RegradedTrial`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labledger.engine.engine import Engine
from labledger.errors import LabLedgerError
from labledger.experiment.task_row import workspace_seed
from labledger.records import JsonObject
from labledger.records.attempt_result import AttemptResult, Phase
from labledger.records.identity import TrialIds
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.contract import PHASE_NAMES, ExitStatus
from labledger.trial.evidence.container_exit import (
    ContainerExit,
    facts_of_separate_grader,
    facts_of_trial,
)
from labledger.trial.evidence.evidence_collection import EvidenceCollector
from labledger.trial.evidence.redaction import Redactor
from labledger.trial.output_folders import TrialOutputs


class EvidenceIncomplete(LabLedgerError):
    """The evidence of an earlier container that a trial needs is missing or not exact."""


class TrialKind(ABC):
    """What is different in trials of one kind. Immutable; can be pickled."""

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
        """Identities that outputs in its container may name in addition to the attempt's own."""

    @property
    @abstractmethod
    def extension(self) -> JsonObject:
        """What evidence and score of the kind have in addition under `ext`."""

    @abstractmethod
    def is_carried_over(self, spec: AttemptSpec) -> bool:
        """Return True if nothing runs, because the result is a copy of another trial's."""

    def carried_over_result(self, spec: AttemptSpec) -> AttemptResult:
        """Return the result of an attempt for which nothing runs.

        Kinds whose trials can be carried over implement it.
        """
        raise NotImplementedError

    def incomplete_result(self, spec: AttemptSpec, why: str) -> AttemptResult:
        """Return the result of a trial that raised `EvidenceIncomplete` with the message `why`.

        Kinds that need the evidence of an earlier container implement it.
        """
        raise NotImplementedError

    @abstractmethod
    def fill(self, spec: AttemptSpec, folder: Path) -> None:
        """Fill a new trial folder: the workspace, and the files that phases expect there.

        Raises `EvidenceIncomplete`.
        """

    def emptied_folders(self, _spec: AttemptSpec) -> tuple[str, ...]:
        """Return the folders of the image that begin empty, before `container_files` are put."""
        return ()

    @abstractmethod
    def container_files(self, spec: AttemptSpec) -> Iterator[bytes] | None:
        """Return a tar of what is put into the new container at `/`, None if there is nothing.

        Only workspaces in a folder of the image are filled so.
        """

    @abstractmethod
    def exit_of_all_phases(self, container_exit: ContainerExit) -> ContainerExit:
        """Return a container's exit with the times of the earlier phases included."""

    @abstractmethod
    def isolation_facts(
        self, engine: Engine, spec: AttemptSpec, container_exit: ContainerExit
    ) -> JsonObject:
        """Return the isolation facts of a trial whose container has stopped.

        Raises `EngineUnavailable`.
        """

    @abstractmethod
    def evidence(self, spec: AttemptSpec, redactor: Redactor) -> EvidenceCollector:
        """Return a collector of the trial's evidence.

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
        if spec.has_mounted_workspace:
            workspace_seed(spec.task.workspace, spec.plan.store_root).fill(folder / "workspace")

    def container_files(self, spec: AttemptSpec) -> Iterator[bytes] | None:
        if spec.has_mounted_workspace or spec.task.workspace is None:
            return None
        return workspace_seed(spec.task.workspace, spec.plan.store_root).tar(spec.workspace)

    def exit_of_all_phases(self, container_exit: ContainerExit) -> ContainerExit:
        return container_exit

    def isolation_facts(
        self, engine: Engine, spec: AttemptSpec, container_exit: ContainerExit
    ) -> JsonObject:
        if container_exit.artifacts is not None:
            return facts_of_separate_grader(engine, spec, container_exit)
        return facts_of_trial(engine, spec, container_exit)

    def evidence(self, spec: AttemptSpec, redactor: Redactor) -> EvidenceCollector:
        return EvidenceCollector(TrialOutputs.of(spec), redactor)
