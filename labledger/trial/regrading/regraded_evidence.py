"""Collect the evidence of a regraded trial, which refers to the stored evidence of its agent.

Only the outputs of the new grader are read from the trial folder. For everything from before
grading, the record refers to the stored artifacts. Used by `regraded_trial`.
"""

from __future__ import annotations

import io
from copy import deepcopy

from labledger.records import JsonObject
from labledger.records.events import Event, EventFile
from labledger.trial import contract
from labledger.trial.attempt_spec import AttemptSpec, StoredTrial
from labledger.trial.evidence.artifacts import EvidenceCollector
from labledger.trial.evidence.container_changes.collection import StoppedContainer
from labledger.trial.evidence.redaction import Redactor
from labledger.trial.output_folders import outputs_of
from labledger.trial.regrading.stored_artifacts import StoredArtifacts


class RegradedEvidence(EvidenceCollector):
    """An evidence collector that refers to a stored trial and reads only a new grader's outputs.

    Listing and patch of the workspace are those of the stored trial: they say what was graded,
    not what the new grader changed there.
    """

    def __init__(self, spec: AttemptSpec, redactor: Redactor, trial: StoredTrial) -> None:
        super().__init__(spec, redactor)
        self.stored = StoredArtifacts.of(spec, trial)
        redactor.count += trial.redactions

    def refer_to_everything(self) -> None:
        """Refer to all stored evidence, including its grading: for a trial that is carried over."""
        self._refer_to(*self.stored.references)
        trial = self.stored.trial
        for reference in trial.extension("rejected").values():
            self._add_stored(str(reference))
        self.ext |= deepcopy(trial.evidence.get("ext", {}))

    def _refer_to(self, *names: str) -> None:
        for name in names:
            if (problem := self.stored.problem(name)) is not None:
                self.add_problem(name, problem)
            if (reference := self.stored.references.get(name)) is not None:
                self.references[name] = reference
                self._add_stored(reference)

    def _add_stored(self, reference: str) -> None:
        if (artifact := self.stored.artifact(reference)) is not None:
            self.artifacts[artifact.sha256] = artifact

    def collect_logs(self, phases: list[str]) -> None:
        for phase in (contract.ENTRYPOINT, "setup", "agent"):
            self._refer_to(f"{phase}_stdout", f"{phase}_stderr")
        super().collect_logs([phase for phase in phases if phase == "grader"])

    def collect_agent_result(self) -> JsonObject | None:
        self._refer_to("trial_output")
        content = self.stored.read("trial_output")
        return None if content is None else self.parse_agent_result(content)

    def collect_events(self) -> tuple[tuple[Event, ...] | EventFile, int]:
        self._refer_to("events")
        content = self.stored.read("events") or b""
        return self.read_events(io.BytesIO(content), len(content))

    def collect_outputs(self, *phases: str) -> None:
        if "agent" in phases and outputs_of(self.spec, "agent"):
            self._refer_to("agent_outputs")
        super().collect_outputs(*(phase for phase in phases if phase == "grader"))

    def collect_workspace(self, _container: StoppedContainer | None = None) -> list[str]:
        names = ("before", "after", "patch", "files", "changes", "snapshot")
        self._refer_to(*(f"workspace_{name}" for name in names))
        collected = (name for name in self.stored.references if name.startswith("collect_"))
        self._refer_to("artifacts", *collected)
        stored_ext = self.stored.trial.evidence.get("ext", {})
        for key in ("artifacts", "artifacts_with_secrets"):
            if key in stored_ext:
                self.ext[key] = deepcopy(stored_ext[key])
        autoloaded = self.stored.trial.extension("isolation").get("workspace_hooks")
        return autoloaded if isinstance(autoloaded, list) else []
