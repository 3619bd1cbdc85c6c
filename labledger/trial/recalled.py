"""The evidence of a trial that is judged again: what came before its grading, as it was kept."""

from __future__ import annotations

import io
from copy import deepcopy

from labledger.records import Event, EventFile, JsonObject
from labledger.trial.contract import StoredTrial, TrialSpec
from labledger.trial.evidence import EvidenceCollector
from labledger.trial.redact import Redactor
from labledger.trial.stored import StoredArtifacts, redacted_in, stored_extension


class RegradedEvidence(EvidenceCollector):
    """Refers again to what is stored of the earlier trial; reads only what a new grader wrote.

    So the workspace's list of files and patch say what was judged: what its agent left (and its
    own grader), not what the new grader did there. That cannot be judged again, nor can it change
    what is.
    """

    def __init__(self, spec: TrialSpec, redactor: Redactor, earlier: StoredTrial) -> None:
        super().__init__(spec, redactor)
        self._stored = StoredArtifacts.of(spec, earlier)
        redactor.count += redacted_in(earlier)

    def recall(self) -> None:
        """Refer to everything, also to its grading: there is to be no other."""
        self._recall(*self._stored.references)
        earlier = self._stored.earlier
        for reference in stored_extension(earlier, "rejected").values():
            self._refer(str(reference))
        self.ext |= deepcopy(earlier.evidence.get("ext", {}))

    def _recall(self, *names: str) -> None:
        for name in names:
            if (problem := self._stored.problem(name)) is not None:
                self.add_problem(name, problem)
            if (reference := self._stored.references.get(name)) is not None:
                self.references[name] = reference
                self._refer(reference)

    def _refer(self, reference: str) -> None:
        if (artifact := self._stored.artifact(reference)) is not None:
            self.artifacts[artifact.sha256] = artifact

    @property
    def isolation(self) -> JsonObject:
        """What the earlier trial's evidence says of its isolation; empty where it says nothing."""
        return stored_extension(self._stored.earlier, "isolation")

    def collect_logs(self, phases: list[str]) -> None:
        for phase in ("setup", "agent"):
            self._recall(f"{phase}_stdout", f"{phase}_stderr")
        super().collect_logs([phase for phase in phases if phase == "grader"])

    def collect_result(self) -> JsonObject | None:
        self._recall("trial_output")
        content = self._stored.read("trial_output")
        return None if content is None else self.checked_result(content)

    def collect_events(self) -> tuple[tuple[Event, ...] | EventFile, int]:
        self._recall("events")
        content = self._stored.read("events") or b""
        return self.read_events(io.BytesIO(content), len(content))

    def collect_workspace(self) -> list[str]:
        self._recall(*(f"workspace_{name}" for name in ("before", "after", "patch", "files")))
        hooks = self.isolation.get("workspace_hooks")
        return hooks if isinstance(hooks, list) else []
