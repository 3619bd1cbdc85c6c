"""How to run an experiment beyond what it says itself, and how the run stood at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from labledger.analysis.flips import Flip
from labledger.errors import Exit
from labledger.experiment.resolve import Overrides
from labledger.ledger.model import Stop
from labledger.records import JsonObject, StopCause
from labledger.runner.events import Listener, ignore
from labledger.runner.holds import PATIENCE_S
from labledger.runner.keeping import Keep
from labledger.runner.lease import TTL_S
from labledger.runner.room import MIN_FREE_BYTES
from labledger.runner.stopping import StopRequest


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run, as far as the experiment does not say it."""

    lab_dir: Path | str | None = None
    run_id: str | None = None
    max_concurrency: int | None = None
    limit: int | None = None
    tasks: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """`NAME=VALUE` words."""
    env_files: tuple[Path | str, ...] = ()
    frozen: bool = False
    """Resume with what the run was started with, whatever became of its files."""
    take_over: bool = False
    """Resume a run that another coordinator owns, as soon as its lease has expired."""
    lease_ttl_s: float = TTL_S
    """How long the run stays this coordinator's without a heartbeat, in seconds."""
    patience_s: float = PATIENCE_S
    """How long nothing may be dispatchable, in seconds, before the run stops, resumable: while the
    Docker engine is gone or starts nothing, or a disk is full."""
    min_free_bytes: int = MIN_FREE_BYTES
    """What must be free in the lab and in the engine's folder for another trial to begin."""
    max_error_rate: float | None = None
    """The largest share of slots that may end as setup_error, grade_error or infra_error."""
    budget_usd: float | None = None
    """What may be spent before the run stops, resumable, by the metric `cost_usd`. The run keeps
    it: None leaves a resumed run's as it is, `math.inf` lifts it."""
    budget_tokens: float | None = None
    """The same, by the metrics `tokens_in` and `tokens_out`."""
    keep: Keep = Keep.NONE
    """Which trial folders stay, in the run folder's `kept`."""
    tell: Listener = ignore
    stop: StopRequest = field(default_factory=StopRequest)

    def watched_by(self, listener: Listener) -> RunOptions:
        """The same options, with every event told to `listener`."""
        return replace(self, tell=listener)

    @property
    def budget(self) -> dict[str, float]:
        """The limits that are given, by kind."""
        given = {"cost_usd": self.budget_usd, "tokens": self.budget_tokens}
        return {kind: limit for kind, limit in given.items() if limit is not None}

    @property
    def overrides(self) -> Overrides:
        return Overrides(
            limit=self.limit,
            tasks=self.tasks,
            variants=self.variants,
            max_concurrency=self.max_concurrency,
        )


@dataclass(frozen=True, slots=True)
class Regrading:
    """What a regrading came to beside the generation that counted before."""

    root_id: str
    """The run whose evidence it judges."""
    generation: int
    earlier: int
    """The generation that it is held against."""
    flips: tuple[Flip, ...]
    """What became of its slots; empty while it is not complete."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run stands when its coordinator ends."""

    run_id: str
    folder: Path
    complete: bool
    summary: JsonObject
    stopped: bool = False
    """True when somebody asked it to stop."""
    stop: Stop | None = None
    """Why it stopped before every slot was committed; None where it is complete."""
    regrading: Regrading | None = None
    """None of a run that is no regrading."""
    budget: Mapping[str, float] = field(default_factory=dict)
    """What the run may spend, by kind (`cost_usd`, `tokens`): its limits, whoever resumes it."""
    used_up: tuple[str, ...] = ()
    """The kinds of which nothing is left."""

    @property
    def trouble(self) -> str | None:
        """What ended it before its time, where nobody asked for that."""
        if self.stop is None or self.stop.cause == StopCause.INTERRUPT:
            return None
        return self.stop.message

    @property
    def unscored_variants(self) -> tuple[str, ...]:
        """The variants of a complete run that have no score at all: nothing was measured of them.

        Of a run that is not complete, none: more may come.
        """
        if not self.complete:
            return ()
        counted = self.summary["ext"]["variants"]
        return tuple(variant["variant_id"] for variant in counted if not variant["scored"])

    @property
    def infra_errors(self) -> int:
        return int(self.summary["ext"]["statuses"].get("infra_error", 0))

    @property
    def exit_code(self) -> Exit:
        if self.stopped and not self.complete:
            return Exit.INTERRUPTED
        if not self.complete or self.infra_errors or self.unscored_variants:
            return Exit.INCOMPLETE
        return Exit.COMPLETE
