"""`AttemptSpec`, which describes one attempt completely, and `TrialPlan`, which a variant's share.

Both are made from the experiment and the ledger, and can be pickled. They say what is to happen,
and run nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.experiment.consistency_checks import is_root, starts_as_root, user_of_phase
from labledger.experiment.grading import GradingMode, Sealing
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.plan_sections import (
    Benchmark,
    GraderIdentity,
    MetricDefinition,
    VariantPlan,
)
from labledger.experiment.task_row import Task
from labledger.experiment.trial_settings import TrialSettings, VariantSettings
from labledger.records import JsonObject
from labledger.records.attempt_result import Phase
from labledger.records.identity import Slot, Stamp, TrialIds, slot_commit_id
from labledger.trial import contract
from labledger.trial.image_facts import ImageFacts

if TYPE_CHECKING:
    from labledger.trial.trial_kind import TrialKind


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The settings that all trials of one variant of a run share."""

    ledger_id: str
    run_dir: Path
    store_root: Path
    bindings: JsonObject
    settings: VariantSettings
    benchmark: Benchmark
    metrics: tuple[MetricDefinition, ...]
    images: Mapping[str, str]
    """Image id (`sha256:…`) by the name the experiment gives."""
    environment: Mapping[str, str] = field(repr=False)
    """Values from the environment by name: secrets, never stored."""
    grader: GraderIdentity
    """Recorded in each score."""
    is_sealed: bool = False
    """Whether the agent must not be able to read the grader's files."""
    engine_root: Path | None = None
    """The engine's data folder, if known: containers' own file systems are on its disk."""
    image_facts: Mapping[str, ImageFacts] = field(default_factory=dict)
    """By image id. `worker` adds those of a trial whose settings depend on them."""
    egress_image: str | None = None
    """Image id of the egress proxies; None if the engine has no such image."""

    @classmethod
    def of(
        cls,
        experiment: ExperimentPlan,
        variant: VariantPlan,
        *,
        ledger_id: str,
        run_dir: Path,
        store_root: Path,
        engine_root: Path | None,
        images: Mapping[str, str],
        environment: Mapping[str, str],
        egress_image: str | None = None,
    ) -> TrialPlan:
        """Return the plan of one variant of an experiment."""
        return cls(
            ledger_id=ledger_id,
            run_dir=run_dir,
            store_root=store_root,
            bindings=variant.bindings,
            settings=VariantSettings.of(experiment, variant),
            benchmark=experiment.benchmark,
            metrics=experiment.metrics,
            images=images,
            environment={name: environment[name] for name in experiment.environment},
            grader=experiment.grader_identity,
            is_sealed=experiment.is_sealed,
            engine_root=engine_root,
            egress_image=egress_image,
        )

    @property
    def disks(self) -> tuple[Path, ...]:
        """One path on each disk that the trials write to."""
        return (self.run_dir,) if self.engine_root is None else (self.run_dir, self.engine_root)

    @property
    def deps_dir(self) -> Path:
        return self.run_dir / "deps"

    @property
    def sealed_dir(self) -> Path:
        """The folder with the staged files of a sealed grader."""
        return self.run_dir / "sealed"


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A trial of another run, as stored, that a regrading grades again."""

    ids: TrialIds
    """Of the trial in the run that is regraded."""
    record: JsonObject
    """Its `trial_record_v1`."""
    evidence: JsonObject
    """The `evidence_record_v1` of its last attempt."""
    contents: Mapping[str, bytes]
    """Its artifacts that are stored in the ledger, by SHA-256 (hex). Others are in the store."""

    @property
    def phases(self) -> dict[str, Phase]:
        """Its phases that ran."""
        recorded = self.record["phases"]
        return {
            name: Phase(phase["exit_status"], phase["duration_ms"], phase["timed_out"])
            for name in contract.PHASE_NAMES
            if (phase := recorded.get(name)) is not None
        }

    @property
    def phases_before_grading(self) -> dict[str, Phase]:
        return {name: phase for name, phase in self.phases.items() if name != "grader"}

    @property
    def redactions(self) -> int:
        """How many secrets were redacted from its outputs."""
        count = self.evidence.get("ext", {}).get("redacted")
        return count if isinstance(count, int) else 0

    def extension(self, key: str) -> JsonObject:
        """Return the object under a key of `ext` in its evidence, {} if there is none."""
        value = self.evidence.get("ext", {}).get(key)
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class AttemptSpec:
    """One attempt at one slot: everything that a worker needs. Can be pickled."""

    plan: TrialPlan
    slot: Slot
    run_id: str
    attempt: int
    task: Task
    kind: TrialKind
    """What runs in the container, and what differs because of it."""
    container_may_exist: bool = False
    """True if an earlier coordinator may have created this attempt's container."""
    part: str = ""
    """`grader` for the second container of a trial with a separate grader, else empty."""
    host: str = ""
    """The host whose engine runs the attempt, as the dispatch journal names it; empty until an
    executor has placed it."""
    settings: TrialSettings = field(init=False, compare=False)
    """Those of the trial: of its variant, with its task's own over them."""

    def __post_init__(self) -> None:
        settings = self.plan.settings.merged(self.task.overrides)
        if settings.grading.mode is GradingMode.SEPARATE and not self.runs_agent:
            settings = settings.of_separate_grader()
        facts = self.plan.image_facts.get(self.plan.images.get(str(settings.runtime.image), ""))
        waits = settings.runtime.healthcheck == "image" and self.runs_agent
        if waits and facts is not None and facts.health is not None:
            setup = facts.health.before(settings.phases.get("setup"))
            settings = replace(settings, phases={**settings.phases, "setup": setup})
        object.__setattr__(self, "settings", settings)

    def on_host(self, host: str) -> AttemptSpec:
        """Return the same attempt, placed on a host."""
        # Neither `replace`, which would merge the settings again, nor `copy`: each slot is placed.
        placed = object.__new__(AttemptSpec)
        for name in self.__slots__:
            object.__setattr__(placed, name, host if name == "host" else getattr(self, name))
        return placed

    @property
    def key(self) -> tuple[int, int]:
        """The numbers of the slot and of the attempt, which identify it in its run."""
        return self.slot.schedule_idx, self.attempt

    @property
    def is_remote(self) -> bool:
        """Whether it runs on a host of a cluster, whose name is `NAME/IDPREFIX`."""
        return "/" in self.host

    @property
    def ids(self) -> TrialIds:
        return TrialIds.of(self.run_id, self.slot)

    @property
    def slot_commit_id(self) -> str:
        return slot_commit_id(self.run_id, self.slot.schedule_idx)

    def stamp(self, ts: str) -> Stamp:
        """Return what all its records of the time `ts` have in common."""
        idx = self.slot.schedule_idx
        return Stamp(self.ids, idx, self.slot_commit_id, self.attempt, ts)

    @property
    def container_name(self) -> str:
        name = contract.container_name(
            self.plan.ledger_id, self.run_id, self.slot.schedule_idx, self.attempt
        )
        return f"{name}-{self.part}" if self.part else name

    @property
    def folder(self) -> Path:
        folder = contract.trial_folder(self.plan.run_dir, self.slot.schedule_idx, self.attempt)
        return folder / self.part if self.part else folder

    @property
    def image_ref(self) -> str:
        image = self.settings.runtime.image
        assert image is not None  # `resolve` refuses a task without an image.
        return image

    @property
    def image_id(self) -> str:
        return self.plan.images[self.image_ref]

    @property
    def _image_facts(self) -> ImageFacts:
        return self.plan.image_facts.get(self.image_id, ImageFacts())

    @property
    def starts_as_root(self) -> bool:
        """Whether the container's first user is root."""
        user = self.settings.runtime.user
        return is_root(self._image_facts.user) if user is None else starts_as_root(user)

    def user_of_phase(self, own: str | None) -> str | None:
        """Return the user that `trial.sh` switches to for a phase that names the user `own`.

        None if the phase runs as the container's first user.
        """
        return user_of_phase(own, self.settings.runtime.user, self._image_facts.user)

    @property
    def has_mounted_workspace(self) -> bool:
        """Whether the workspace is a folder of the trial, and not one of the image."""
        return self.settings.runtime.workspace is None

    @property
    def workspace(self) -> str:
        """The absolute path of the workspace in the container."""
        authored = self.settings.runtime.workspace
        if authored == "image":
            return f"/{self._image_facts.folder.strip('/')}"
        return contract.WORKSPACE if authored is None else authored.rstrip("/")

    @property
    def sealing(self) -> Sealing:
        """How the grader's files are hidden from the agent."""
        if not self.runs_agent:
            return Sealing.NONE
        return self.settings.sealing(is_sealed=self.plan.is_sealed)

    @property
    def grading_mode(self) -> GradingMode:
        """When and where the grader of a fresh trial runs."""
        return self.settings.grading_mode(is_sealed=self.plan.is_sealed)

    @property
    def has_grader_container(self) -> bool:
        """Whether a second container grades the trial when the agent's has ended."""
        return self.runs_agent and self.grading_mode is GradingMode.SEPARATE

    @property
    def grader_folder(self) -> Path:
        """The folder with the inputs and outputs of the container in which the grader runs."""
        return self.folder / "grader" if self.has_grader_container else self.folder

    @property
    def grader_image_ref(self) -> str:
        """The image in which the grader runs, as the experiment names it."""
        return self.settings.grader_image(self.grading_mode)

    @property
    def grader_image_id(self) -> str:
        return self.plan.images[self.grader_image_ref]

    @property
    def uses_egress_proxy(self) -> bool:
        """Whether a phase has the network `allowlist`."""
        settings = self.settings
        return settings.agent_network.is_allowlist or settings.grader_network.is_allowlist

    @property
    def deadline_s(self) -> float:
        """Seconds after which the host kills the container, if it exceeds its time limits.

        Without the grader if that has a container of its own.
        """
        phases = self.kind.phases
        if not self.has_grader_container:
            return self.deadline_of(*phases)
        collect = self.settings.grading.collect or ()
        agent_part = self.deadline_of(*(phase for phase in phases if phase != "grader"))
        return agent_part + sum(command.timeout_s for command in collect)

    def deadline_of(self, *phases: str) -> float:
        """Return the seconds after which the host kills a container that runs these phases."""
        return sum(self.settings.timeout_s(phase) for phase in phases) + contract.OUTER_MARGIN_S

    @property
    def keeps_processes(self) -> bool:
        """Whether what setup and agent leave running goes on until the grader ends."""
        return self.settings.runtime.processes == "keep"

    @property
    def starts_entrypoint(self) -> bool:
        """Whether the image's entrypoint is started in the background, before setup."""
        return self.settings.runtime.entrypoint == "image" and self.runs_agent

    @property
    def runs_agent(self) -> bool:
        """Whether the agent runs in the container. An agent that may have run is not run again."""
        return "agent" in self.kind.phases

    def labels(self) -> dict[str, str]:
        labels = {
            contract.Labels.LEDGER: self.plan.ledger_id,
            contract.Labels.RUN: self.run_id,
            contract.Labels.SLOT: str(self.slot.schedule_idx),
            contract.Labels.ATTEMPT: str(self.attempt),
        }
        return labels | {contract.Labels.PART: self.part} if self.part else labels
