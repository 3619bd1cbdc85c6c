"""What proves a trial: everything it read and wrote, as artifacts that one record refers to."""

from __future__ import annotations

from dataclasses import dataclass, field

from labledger import canonical, schema
from labledger.errors import MalformedJson, SchemaInvalid
from labledger.records import Artifact, Event, JsonObject
from labledger.store import ArtifactStore
from labledger.trial import contract, outputs, workspace
from labledger.trial.contract import TrialSpec
from labledger.trial.grading import IdentityMismatch, Judgement, checked_ids
from labledger.trial.inputs import workspace_seed
from labledger.trial.redact import Redactor

EVIDENCE_SCHEMA = "evidence_record_v1"
RESULT_SCHEMA = "agent_result_v1"
INLINE_LIMIT = 32 * 1024
"""Larger artifacts go to the artifact store instead of the database."""


@dataclass(slots=True)
class Evidence:
    """Collects the artifacts of one attempt."""

    spec: TrialSpec
    redactor: Redactor
    references: dict[str, str] = field(default_factory=dict)
    ext: JsonObject = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    def keep(self, content: bytes) -> str:
        """Keep redacted content and return the reference to it."""
        artifact = Artifact.inline(content)
        if artifact.size > INLINE_LIMIT:
            ArtifactStore(self.spec.plan.store_root).put_bytes(content)
            artifact = Artifact(artifact.sha256, artifact.size, None)
        self.artifacts[artifact.sha256] = artifact
        return artifact.reference

    def note(self, name: str, problem: str) -> None:
        """Say why a piece of evidence is not there."""
        self.ext.setdefault("problems", {})[name] = problem

    def collect_inputs(self) -> None:
        spec = self.spec
        phases = {
            name: {"command": list(plan.command), "timeout_s": spec.timeout_s(name)}
            for name, plan in spec.plan.phases.items()
        }
        content = {
            "task": spec.task,
            "bindings": spec.plan.bindings,
            "policy": spec.plan.policy,
            "phases": phases,
            "image": {"ref": spec.image_ref, "id": spec.image_id},
        }
        self.references["trial_input"] = self.keep(canonical.dump_bytes(content))

    def collect_logs(self, phases: list[str]) -> None:
        for phase in phases:
            for stream in ("stdout", "stderr"):
                name = f"{phase}_{stream}"
                cap = self.spec.plan.runtime["max_log_bytes"]
                self._collect(name, "state", f"{phase}.{stream}", cap)

    def collect_rejected(self, judgement: Judgement) -> None:
        """Keep what the grader wrote and no row was made of, so that its author can look."""
        for name, content in judgement.rejected.items():
            self.ext.setdefault("rejected", {})[name] = self.keep(content)

    def collect_result(self) -> JsonObject | None:
        """Keep the agent's result; return it where it is valid."""
        content = self._collect("trial_output", "out", contract.RESULT, outputs.RESULT_CAP)
        if content is None:
            return None
        try:
            result = canonical.loads(content)
            if isinstance(result, dict):
                result.setdefault("schema_version", RESULT_SCHEMA)
                result["ids"] = checked_ids(result.get("ids"), self.spec)
            schema.check(result, RESULT_SCHEMA)
        except (MalformedJson, SchemaInvalid, IdentityMismatch) as error:
            self.note("trial_output", f"{contract.RESULT}: {error}")
            return None
        found: JsonObject = result
        return found

    def collect_events(self) -> tuple[tuple[Event, ...], int]:
        """Keep the events file; return the events that can be read and how many cannot."""
        content = self._collect("events", "state", contract.EVENTS, outputs.EVENTS_CAP)
        events: list[Event] = []
        dropped = 0
        for line in (content or b"").split(b"\n"):
            if not line.strip():
                continue
            try:
                body = canonical.loads(line)
            except MalformedJson:
                body = None
            if isinstance(body, dict):
                kind = body.get("type")
                events.append(Event(len(events), kind if isinstance(kind, str) else None, body))
            else:
                dropped += 1
        return tuple(events), dropped

    def collect_workspace(self) -> None:
        """Keep the list of files before and after, and the patch between them."""
        seed = workspace_seed(self.spec)
        folder = self.spec.folder / "workspace"
        before = workspace.list_seed(seed)
        after = workspace.list_folder(folder)
        for name, listing in (("workspace_before", before), ("workspace_after", after)):
            content = self.redactor.data(canonical.dump_bytes(listing.as_json()))
            self.references[name] = self.keep(content)
        patch = self.redactor.data(workspace.patch(seed, folder, before, after))
        if patch:
            self.references["workspace_patch"] = self.keep(patch)

    def record(self, ts: str, exit_status: int | None, duration_ms: int) -> JsonObject:
        """The evidence record, valid against its schema."""
        spec = self.spec
        record: JsonObject = {
            "schema_version": EVIDENCE_SCHEMA,
            "schedule_idx": spec.slot.schedule_idx,
            "slot_commit_id": spec.slot_commit_id,
            "attempt": spec.attempt,
            "row_seq": 0,
            "ts": ts,
            "ids": spec.ids.as_json(),
            "runtime": {
                "executor": "docker",
                "exit_status": exit_status,
                "duration_ms": duration_ms,
                "image_ref": spec.image_ref,
                "image_id": spec.image_id,
                "container": spec.container,
            },
            "evidence": dict(self.references),
        }
        if self.ext:
            record["ext"] = self.ext
        schema.check(record, EVIDENCE_SCHEMA)
        return record

    def _collect(self, name: str, folder: str, file: str, cap: int) -> bytes | None:
        """Read an output, redact and keep it under `name`; None where it cannot be had."""
        content, problem = outputs.read_leniently(self.spec.folder / folder, file, cap)
        if problem is not None:
            self.note(name, self.redactor.text(problem))
        if content is None:
            return None
        content = self.redactor.data(content)
        self.references[name] = self.keep(content)
        return content
