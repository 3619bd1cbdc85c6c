"""How slots and runs end: status, verdict, reason, and why a run stops early.

`docs/reference/outcomes.md` documents every value for readers of a ledger; a test compares them.
"""

from __future__ import annotations

from enum import StrEnum

CONTAINER_FAILED = "container_failed"
HOST_ERROR = "host_error"
NAME_TAKEN = "name_taken"
NOT_STARTED = frozenset({CONTAINER_FAILED, HOST_ERROR, NAME_TAKEN})
"""Reasons of an `infra_error` with which nothing of a trial has run."""


class SlotStatus(StrEnum):
    """How the execution of a slot ended. Says nothing about the quality of the answer."""

    COMPLETED = "completed"
    AGENT_ERROR = "agent_error"
    AGENT_TIMEOUT = "agent_timeout"
    SETUP_ERROR = "setup_error"
    GRADE_ERROR = "grade_error"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"
    SKIPPED_PRUNED = "skipped_pruned"


class Verdict(StrEnum):
    """What the grader judged. Only a score row carries one."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    MISSING = "missing"
    ERROR = "error"


class GradeReason(StrEnum):
    """Why a slot is a `grade_error`."""

    GRADER_EXIT_NONZERO = "grader_exit_nonzero"
    GRADER_TIMEOUT = "grader_timeout"
    PREDICTION_MISSING = "prediction_missing"
    SCORE_MISSING = "score_missing"
    INVALID_JSON = "invalid_json"
    SCHEMA_INVALID = "schema_invalid"
    IDENTITY_MISMATCH = "identity_mismatch"
    OUTPUT_UNSAFE = "output_unsafe"
    OUTPUT_TOO_LARGE = "output_too_large"
    EVIDENCE_INCOMPLETE = "evidence_incomplete"
    """Of a regrading: the workspace cannot be restored exactly."""


class RunStatus(StrEnum):
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"


class StopCause(StrEnum):
    """Why a coordinator stopped before every slot of its run was committed."""

    INTERRUPT = "interrupt"
    """Ctrl-C, TERM, or a terminal that was closed."""
    BUDGET = "budget"
    ERROR_RATE = "error_rate"
    ENGINE = "engine"
    """The Docker engine was gone for longer than `--patience`."""
    REFUSALS = "refusals"
    """The engine started no trial for longer than `--patience`."""
    DISK = "disk"
    """There was no room for longer than `--patience`."""
    UNCOLLECTED = "uncollected"
    """A trial's result could not be read from its container."""
    ERROR = "error"
    """The coordinator itself failed."""
