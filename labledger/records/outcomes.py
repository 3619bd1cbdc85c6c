"""How slots and runs end: status, verdict, reason, and why a run stops early.

`docs/reference/outcomes.md` documents every value for readers of a ledger; a test compares them.
"""

from __future__ import annotations

from enum import StrEnum


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


NEVER_RUN = (SlotStatus.CANCELLED.value, SlotStatus.SKIPPED_PRUNED.value)
"""The statuses of slots that were committed without a trial."""

WITHOUT_RESULT = frozenset({SlotStatus.INFRA_ERROR.value, SlotStatus.SETUP_ERROR.value, *NEVER_RUN})
"""The statuses of slots without a result of the agent that a user could choose them by."""


class Verdict(StrEnum):
    """The grader's decision. Only a score has one."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    MISSING = "missing"
    ERROR = "error"


class Reason(StrEnum):
    """Why a slot's status is not `completed`, as an identifier that programs can rely on.

    Grouped by the status that goes with the reason. The reason of a slot that is `skipped_pruned`
    or `cancelled` is a sentence and none of these. A ledger may contain reasons of other versions
    of labledger: reasons that are read from it remain plain text.
    """

    # agent_error
    AGENT_EXIT_NONZERO = "agent_exit_nonzero"
    """The agent's command exited with a status other than 0."""
    STATUS_FORGED = "status_forged"
    """The container ended in a way that only the agent can have caused."""
    SCRIPT_HINDERED = "script_hindered"
    """The agent hindered `trial.sh`, the container's first process."""

    OUT_OF_PROCESSES = "out_of_processes"
    """The agent left processes that use more than half of the limit of processes, so the grader
    could not start its own."""

    ARTIFACTS_REFUSED = "artifacts_refused"
    """The agent left outputs that cannot be read, or that exceed the limits of a separate grader or
    a prediction."""

    MODEL_CAP = "model_cap"
    """The agent's command failed after the gateway refused a call that could have exceeded a cap of
    the experiment."""

    CANCELLED = "cancelled"
    """A user cancelled the trial (`labledger cancel`) while it ran; as an `infra_error`, while it
    waited for another attempt."""

    # agent_timeout
    AGENT_TIMEOUT = "agent_timeout"
    """The agent exceeded its time limit."""

    # setup_error
    SETUP_EXIT_NONZERO = "setup_exit_nonzero"
    """The setup command failed."""
    SETUP_TIMEOUT = "setup_timeout"
    """The setup command exceeded its time limit."""

    # grade_error
    GRADER_EXIT_NONZERO = "grader_exit_nonzero"
    """The grader's command failed, its container could not be started again, or a process in a
    grader's own container ended the container."""
    GRADER_TIMEOUT = "grader_timeout"
    """The grader exceeded its time limit."""
    PREDICTION_MISSING = "prediction_missing"
    """The grader wrote no prediction."""
    SCORE_MISSING = "score_missing"
    """The grader wrote no score."""
    INVALID_JSON = "invalid_json"
    """A record of the grader is not JSON that labledger accepts."""
    SCHEMA_INVALID = "schema_invalid"
    """A record does not fit its schema."""
    IDENTITY_MISMATCH = "identity_mismatch"
    """A record's `ids` name another trial."""
    REWARD_MISSING = "reward_missing"
    """The grader left no reward where its rewards are read."""
    REWARD_INVALID = "reward_invalid"
    """The grader's rewards are not finite numbers, or none of them is the primary one."""
    OUTPUT_UNSAFE = "output_unsafe"
    """An output is a link, a device or something else that is not a regular file."""
    OUTPUT_TOO_LARGE = "output_too_large"
    """An output exceeds its size limit."""
    GRADER_BOOTSTRAP_FAILED = "grader_bootstrap_failed"
    """The grader could not work: it also failed for the reference solution, or the `swebench`
    package found a failure of the environment."""
    LOG_NOT_JUDGED = "log_not_judged"
    """The host could not judge the grader's log: it shows no tests, or the judge failed."""
    PATCH_FAILED = "patch_failed"
    """Git could not write the agent's changes as a patch."""
    EVIDENCE_INCOMPLETE = "evidence_incomplete"
    """In a regrading, the workspace cannot be restored exactly."""

    # infra_error
    CONTAINER_FAILED = "container_failed"
    """The engine refused to create or start the container; nothing ran."""
    HOST_ERROR = "host_error"
    """The host could not prepare the trial; nothing ran."""
    NAME_TAKEN = "name_taken"
    """A container without the trial's labels has its name and is left alone; the message says how
    to rename it; nothing ran."""
    GATEWAY_UNAVAILABLE = "gateway_unavailable"
    """The gateway of the agent's models could not be started, or did not answer; nothing ran."""
    PROVIDER_FAILED = "provider_failed"
    """The agent did not pass, and its last call to a model failed at the provider."""
    GATEWAY_FAILED = "gateway_failed"
    """The agent did not pass, and its last call to a model failed at the gateway."""
    REPLAY_MISS = "replay_miss"
    """The record of the replayed run has no answer to a call of the agent; the message has the
    first difference."""
    MODELS_LOST = "models_lost"
    """The helper container of the agent's models was killed or stopped from outside before the
    agent ended."""
    CONTAINER_KILLED = "container_killed"
    """The container was killed from outside."""
    RUN_STOPPED = "run_stopped"
    """A user stopped the run at once, after the agent had spent something. Another attempt follows
    in any case, and this one counts in no limit."""
    CONTAINER_PAUSED = "container_paused"
    """The trial failed after its container was paused from outside; the time limits continued
    during the pause."""
    CONTAINER_REMOVED = "container_removed"
    """The container was removed from outside before its end was known."""
    FOLDER_DELETED = "folder_deleted"
    """The trial's folder was deleted while it ran."""
    PROGRAMS_TOUCHED = "programs_touched"
    """Staged programs, files of the task or the installed agent were touched on the host while the
    trial ran."""
    DISK_FULL = "disk_full"
    """A phase failed, and a disk was full while it ran."""
    OUT_OF_MEMORY = "out_of_memory"
    """The memory limit killed the container's first process. It is an `agent_error` if the agent
    used the memory."""
    HOST_LOST = "host_lost"
    """A user declared the host of the trial lost (`labledger hosts declare-lost`)."""
    LEFT_IN_ORIGINAL = "left_in_original"
    """The attempt was in progress when the lab was backed up, and its container belongs to the
    original lab."""
    DELIVERY_TIMEOUT = "delivery_timeout"
    """No coordinator delivered the grader's files in time."""
    DEADLINE = "deadline"
    """The container exceeded its deadline, the host's own limit, before an agent began in it."""
    TRIAL_SCRIPT_FAILED = "trial_script_failed"
    """`trial.sh` could not complete its work, or the container was started again from outside."""


NOT_STARTED: frozenset[str] = frozenset(
    {
        *(Reason.CONTAINER_FAILED, Reason.HOST_ERROR, Reason.NAME_TAKEN),
        Reason.GATEWAY_UNAVAILABLE,
    }
)
"""Reasons of an `infra_error` that mean that nothing of the trial has run."""


HINDERED: frozenset[str] = frozenset(
    {
        *(Reason.STATUS_FORGED, Reason.SCRIPT_HINDERED, Reason.ARTIFACTS_REFUSED),
        *(Reason.OUT_OF_MEMORY, Reason.OUT_OF_PROCESSES),
    }
)
"""Reasons of an `agent_error` that mean that the agent kept its own trial from ending properly.

No regrading grades such a trial, and no failure of a model excuses it.
"""


NOT_WORTH_RETRYING: frozenset[str] = frozenset({Reason.REPLAY_MISS, Reason.CANCELLED})
"""Reasons that make a retry of the status useless: another attempt would end the same way."""


class RunStatus(StrEnum):
    """The progress of a run. An interrupted one can be resumed."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"


class RequestKind(StrEnum):
    """The kind of a person's request about a run."""

    PAUSE = "pause"
    UNPAUSE = "unpause"
    SET = "set"
    STOP = "stop"
    CANCEL = "cancel"


BUDGET_PARAMETERS = {"cost_usd": "budget_usd", "tokens": "budget_tokens"}
"""The parameter of `RunOptions` that limits what a run may spend, by kind of spending."""


class StopCause(StrEnum):
    """Why a coordinator stopped before every slot of its run was committed."""

    INTERRUPT = "interrupt"
    """Ctrl-C, TERM, a terminal that was closed, or `labledger stop`."""
    BUDGET = "budget"
    """The trials have spent as much as the run's budget allows."""
    ERROR_RATE = "error_rate"
    """More trials ended with an error than `--max-error-rate` allows."""
    UNANSWERED = "unanswered"
    """No model answered the agents of a variant: its key, account or address is wrong."""
    ENGINE = "engine"
    """The Docker engine was gone for longer than `--patience`."""
    REFUSALS = "refusals"
    """The engine started no trial for longer than `--patience`."""
    DISK = "disk"
    """A disk was full for longer than `--patience`."""
    HOSTS = "hosts"
    """Hosts of the run were unreachable for longer than `--patience`, and no other trial was left
    to run."""
    UNJUDGED = "unjudged"
    """The grader of a regrading gave no verdict on trials that an earlier grading judged."""
    UNCOLLECTED = "uncollected"
    """A trial's result could not be read from its container."""
    ERROR = "error"
    """The coordinator itself failed."""
