"""The rule for trials whose tests did not work: whose failure it was.

A grader that could not work says nothing about the agent, but an agent that broke its grader must
not leave the pass rate. Agents can write to the tests' log, so `decide` uses facts of the ledger.
The evidence stores the decision (`ext.grader_failure`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Self

from labledger.records import JsonObject
from labledger.records.json_codec import JsonForm

KEY = "grader_failure"
"""The key of `ext` in the evidence that has a `GraderFailure`."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A line of the tests' log that says that the grader could not work."""

    tool: str
    """The tool that complains, such as `curl`."""
    line: str
    """The line, redacted."""

    @property
    def sentence(self) -> str:
        """The complaint, for a person."""
        return f"the tests' log says that the grader could not work: {self.line}"


class CountedAs(StrEnum):
    """How a trial counts if its tests did not work."""

    NOT_PASSED = "not_passed"
    LEFT_OUT = "left_out"


class Ground(StrEnum):
    """The reason for a decision. `docs/reference/outcomes.md` explains each."""

    REFERENCE_AGENT = "reference_agent"
    """The agent is the benchmark's own, with the reference solution. So no other agent can have
    broken the grader."""
    PROGRAMS_CHANGED = "programs_changed"
    """The agent removed or replaced programs of the image."""
    GRADER_WORKED = "grader_worked"
    """The newest `TellingTrial` passed."""
    REFERENCE_FAILED = "reference_failed"
    """The newest `TellingTrial` ran the reference solution, and failed in the same way."""
    PROCESSES_LEFT = "processes_left"
    """Processes were still running when the agent had ended. They could change the grader's
    results."""
    SYSTEM_CHANGED = "system_changed"
    """Programs, libraries or settings of the system were changed before the grader began."""
    NOTHING_KNOWN = "nothing_known"
    """Nothing shows whose failure it was."""


@dataclass(frozen=True, slots=True)
class TellingTrial(JsonForm):
    """An earlier trial of the same task, image and grader that shows whether the grader works."""

    run_id: str
    schedule_idx: int
    way: str | None
    """How grading the reference solution failed; None if the trial passed."""

    _JSON = ("run_id", "schedule_idx")

    def __str__(self) -> str:
        return f"slot {self.schedule_idx} of {self.run_id}"


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """The facts that the ledger has about a trial whose tests did not work."""

    has_reward: bool
    """Whether the grader nevertheless left a verdict: the reward 0."""
    way: str
    """How the grader failed: the tool that complains, or else the reason."""
    by_reference: bool = False
    by_benchmark: bool = False
    """Whether a benchmark's own rule reads the results. Benchmarks count a missing verdict as 0."""
    programs_changed: tuple[str, ...] = ()
    system_changed: tuple[str, ...] = ()
    """Paths of programs, libraries and settings that were changed before the grader began."""
    processes_left: bool = False
    telling_trial: TellingTrial | None = None


@dataclass(frozen=True, slots=True)
class FailureDecision:
    """How a trial counts, and why."""

    counts: CountedAs
    ground: Ground
    sentence: str
    shown_by: TellingTrial | None = None


@dataclass(frozen=True, slots=True)
class _Rule:
    ground: Ground
    applies: Callable[[KnownFacts], bool]
    counts: CountedAs
    because: Callable[[KnownFacts], str]


_RULES = (
    _Rule(
        Ground.REFERENCE_AGENT,
        lambda facts: facts.by_reference,
        CountedAs.LEFT_OUT,
        lambda _: "the reference solution failed, and no other agent ran",
    ),
    _Rule(
        Ground.PROGRAMS_CHANGED,
        lambda facts: bool(facts.programs_changed),
        CountedAs.NOT_PASSED,
        lambda facts: f"the agent had changed {facts.programs_changed[0]}",
    ),
    _Rule(
        Ground.GRADER_WORKED,
        lambda facts: facts.telling_trial is not None and facts.telling_trial.way is None,
        CountedAs.NOT_PASSED,
        lambda facts: f"the same grader works in the same image: {facts.telling_trial} passed",
    ),
    _Rule(
        Ground.REFERENCE_FAILED,
        lambda facts: facts.telling_trial is not None and facts.telling_trial.way == facts.way,
        CountedAs.LEFT_OUT,
        lambda facts: f"the reference solution failed in the same way ({facts.telling_trial})",
    ),
    _Rule(
        Ground.PROCESSES_LEFT,
        lambda facts: facts.processes_left,
        CountedAs.NOT_PASSED,
        lambda _: "processes were left running when the agent had ended",
    ),
    _Rule(
        Ground.SYSTEM_CHANGED,
        lambda facts: bool(facts.system_changed),
        CountedAs.NOT_PASSED,
        lambda facts: f"{facts.system_changed[0]} was changed before the grader began",
    ),
    _Rule(
        Ground.NOTHING_KNOWN,
        lambda facts: facts.has_reward or facts.by_benchmark,
        CountedAs.NOT_PASSED,
        lambda _: (
            "the agent can have caused this, and the benchmark counts it as 0; an oracle run "
            "(`labledger check`) shows whether the grader works"
        ),
    ),
    _Rule(
        Ground.NOTHING_KNOWN,
        lambda _: True,
        CountedAs.LEFT_OUT,
        lambda _: "nothing shows whose failure it was",
    ),
)
"""The first rule that applies decides."""

_COUNTED = {
    CountedAs.NOT_PASSED: "it counts as not passed",
    CountedAs.LEFT_OUT: "it is left out of the pass rate",
}


def decide(facts: KnownFacts) -> FailureDecision:
    """Return how a trial counts if its tests did not work, and why.

    The agent exited with status 0. An agent that failed has not passed in any case.
    """
    rule = next(rule for rule in _RULES if rule.applies(facts))
    is_told = rule.ground in {Ground.GRADER_WORKED, Ground.REFERENCE_FAILED}
    sentence = f"{_COUNTED[rule.counts]}, because {rule.because(facts)}"
    return FailureDecision(
        rule.counts, rule.ground, sentence, facts.telling_trial if is_told else None
    )


_OF_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/etc")
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def _is_of_system(path: str) -> bool:
    """Return True for a path of the system, or of a library below a home folder."""
    is_below = any(path == folder or path.startswith(f"{folder}/") for folder in _OF_SYSTEM)
    return is_below or not _LIBRARIES.isdisjoint(path.split("/"))


@dataclass(frozen=True, slots=True)
class GraderFailure(JsonForm):
    """The entry in a trial's evidence if its tests did not work."""

    grader: str
    """The digest of the grader."""
    tool: str | None = None
    """The tool that complains in the tests' log, such as `curl`; None if none does."""
    line: str | None = None
    """The line of the `Complaint`, redacted."""
    by_reference: bool = False
    """Whether the agent is the benchmark's own, with the reference solution."""
    by_benchmark: bool = False
    """Whether a benchmark's own rule reads the results."""
    counts: str | None = None
    """One of `CountedAs`; None until the slot is committed, and for an agent that failed."""
    ground: str | None = None
    """One of `Ground`."""
    shown_by: JsonObject | None = None
    """The `TellingTrial` that decided, if one did."""

    _ONLY_SET = True

    @classmethod
    def of_evidence(cls, record: JsonObject) -> Self | None:
        """Return the entry of an evidence record; None if the tests worked."""
        stored = record.get("ext", {}).get(KEY)
        if not isinstance(stored, dict) or "grader" not in stored:
            return None
        return cls(**{f.name: stored[f.name] for f in fields(cls) if f.name in stored})

    @property
    def sentence(self) -> str:
        """The complaint in the tests' log; empty if there is none."""
        return "" if self.tool is None else Complaint(self.tool, self.line or "").sentence

    def way(self, reason: str | None) -> str:
        """Return how the tests of a trial that ended with `reason` failed."""
        return self.tool or reason or ""

    def decided(self, decision: FailureDecision) -> Self:
        """Return a copy with the decision."""
        shown = None if decision.shown_by is None else decision.shown_by.as_json()
        return replace(
            self, counts=decision.counts.value, ground=decision.ground.value, shown_by=shown
        )

    def facts(
        self,
        isolation: JsonObject,
        reason: str | None,
        *,
        has_reward: bool,
        telling_trial: TellingTrial | None,
    ) -> KnownFacts:
        """Return the facts about a trial that ended with `reason`.

        `isolation` has its isolation facts. Changes that were found after grading are ignored,
        because the grader may have made them. The agent never reaches the container of a separate
        grader.
        """
        is_before = isolation.get("checked") == "before_grading"
        suspected = isolation.get("tampering_suspected", ()) if is_before else ()
        is_kept = isolation.get("processes") == "kept"
        return KnownFacts(
            has_reward=has_reward,
            way=self.way(reason),
            by_reference=self.by_reference,
            by_benchmark=self.by_benchmark,
            programs_changed=tuple(isolation.get("programs_changed", ())),
            system_changed=tuple(path for path in suspected if _is_of_system(path)),
            processes_left=is_kept and isolation.get("processes_left") is not False,
            telling_trial=telling_trial,
        )
