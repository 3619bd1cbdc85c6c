"""The container contract: paths, labels and exit statuses of a trial's container.

`trial.sh` implements the other side. A test compares its table of exit statuses with `ExitStatus`.
This module runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from labledger.records import JsonObject

ROOT = "/agentlab"
IN = f"{ROOT}/in"
DEPS = f"{ROOT}/deps"
OUT = f"{ROOT}/out"
STATE = f"{ROOT}/state"
WORKSPACE = f"{ROOT}/workspace"
SEALED = f"{ROOT}/sealed"

RESULT = "result.json"
PREDICTION = "benchmark_prediction.json"
SCORE = "benchmark_score.json"
EVENTS = "events.jsonl"
PHASES_FILE = "phases"
GRADING_FILE = "grading"
"""In `state`: `trial.sh` makes it before the grader begins, once no process of the agent
is left."""
RESTORE_SCRIPT = "restore.sh"
"""Used in a regrading in a folder of the image: deletes what the stored trial had deleted."""
TASK_FILE = "task.json"
"""In `in`: the row of the task."""
AGENT_NOT_BEGUN_FILE = "agent_not_begun"
"""In `state`: the host makes it, and `trial.sh` removes it when the agent begins."""
AGENT_RAN_FILE = "agent_ran"
"""In `in`: the host makes it before it restarts a container in which an agent has run."""
AGENT_ENDED_FILE = "agent_ended"
"""In `state`: the report that the agent of a `delivered` trial has ended, with the phases so far.
In `in`: the host writes it when it believes the report."""
GO_FILE = "go"
"""In `in`: the host writes it when it has delivered the grader's files."""
AGENT_OVER_FILE = "agent_over"
"""In `in`: `trial.sh` changes it when an agent with models has ended."""
MODELS_CLOSED_FILE = "models_closed"
"""In `in`: not empty once the models helper has closed the port to the models."""
MODELS_PORT = 18487
"""The port of the container's loopback at which the agent finds the gateway. It is below the range
from which systems choose ports, and not registered."""
ENTRYPOINT = "entrypoint"
"""Names the output of the image's entrypoint, as a phase names its output."""

PHASE_NAMES: tuple[str, ...] = ("setup", "agent", "grader")

OUTER_MARGIN_S = 120.0
"""Seconds that a container may run beyond the trial's time limits before the host kills it."""


class ExitStatus:
    """The exit statuses of `trial.sh`. Something else ended a container with any other status."""

    GRADED = 0
    AGENT_FAILED_GRADED = 10
    AGENT_TIMED_OUT_GRADED = 11
    SETUP_FAILED = 20
    SETUP_TIMED_OUT = 21
    AGENT_FAILED = 30
    AGENT_TIMED_OUT = 31
    GRADER_FAILED = 40
    GRADER_TIMED_OUT = 41
    AGENT_ENDED = 50
    DELIVERY_TIMED_OUT = 51
    SCRIPT_FAILED = 70
    DISK_FULL = 71
    SCRIPT_HINDERED = 72
    AGENT_END_FORGED = 73

    ALL = frozenset({0, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 70, 71, 72, 73})
    AGENT_PART = ALL - {0, 10, 11, 40, 41, 51, 73}
    """Possible statuses of the first start of a two-part trial."""
    GRADER_PART = ALL - {20, 21, 30, 31, 50, 51, 72, 73}
    """Possible statuses of a start that only grades: the second of a two-part trial, or a
    regrading."""
    SECOND_START = GRADER_PART | {72}
    """Possible statuses of a start that only grades, in a container in which an agent has run."""
    SINGLE_START = ALL - {50, 51, 73}
    """Possible statuses of a trial whose container is started once, with its grader's files."""
    NOT_GRADED = ALL - {0, 10, 11, 40, 41, 50}
    """Possible statuses of a trial in which no grader ran to its end. A `delivered` trial has no
    other before it gets the grader's files."""
    AFTER_DELIVERY = GRADER_PART | {51, 72, 73}
    """Possible statuses of a `delivered` trial that got the grader's files."""

    OF_ENGINE = frozenset({125, 126, 127, 137, 255})
    """Statuses that an engine reports for a container that it could not start, killed, or lost.

    SIGKILL (137) is the only signal from outside that ends a container's first process.
    """


class Labels:
    """Docker labels of labledger's containers. Cleanup touches no container without them."""

    LEDGER = "org.labledger.ledger"
    RUN = "org.labledger.run"
    SLOT = "org.labledger.slot"
    ATTEMPT = "org.labledger.attempt"
    HELPER = "org.labledger.helper"
    """Additional label of a helper container, which is not the container of the attempt."""
    PART = "org.labledger.part"
    """Additional label of the second container of an attempt: `grader`."""
    PROBE = "org.labledger.probe"
    """Label of a probe: a container or network made for a check before a run."""
    OWNER = "org.labledger.owner"
    """Label of a probe: the process that made it, as JSON."""


def secret_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the container's environment variable for each secret, by the secret's name."""
    return {name: f"AGENTLAB_ENV_{i}" for i, name in enumerate(sorted(names))}


def mount(source: Path, target: str, *, read_only: bool = False) -> JsonObject:
    """Return a bind mount of a host folder. Unlike the short text form, it allows colons."""
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}


def trial_folder(run_dir: Path, schedule_idx: int, attempt: int) -> Path:
    """Return the host folder of an attempt's inputs and outputs."""
    return run_dir / f"trials/{schedule_idx:06d}-{attempt}"


def container_name(ledger_id: str, run_id: str, schedule_idx: int, attempt: int) -> str:
    """Return the name of an attempt's container, unique on a Docker engine."""
    return f"labledger-{ledger_id[:8]}-{run_id}-{schedule_idx}-{attempt}"
