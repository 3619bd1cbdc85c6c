"""Pack the logs and patches of trials for a page: truncated, compressed, and as many as fit.

The worst trials come first. Hidden characters are removed from all text here, because the page's
script inserts the text as it is.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import starmap

from labledger.errors import LedgerError, MalformedJson
from labledger.ledger.reader import LedgerReader
from labledger.ledger.rows.trial_contents import TrialContents
from labledger.records import JsonObject
from labledger.records.attempt_result import digest_of
from labledger.records.pass_rate import is_clean_pass
from labledger.report.report_queries import ReportedCommits, ReportedTrial
from labledger.text.escaping import plain_text
from labledger.text.words import counted
from labledger.trajectories.agent_document import AgentDocument
from labledger.trajectories.step_text import conversation, cut_notice, stored_cuts

NAMES = (
    *("workspace_patch", "agent_stdout", "agent_stderr", "grader_stdout", "grader_stderr"),
    *("setup_stdout", "setup_stderr", "trial_output"),
)
"""The evidence that the page shows, in this order."""

_MAX_EVENTS = 500
"""The largest number of events of a trial that the page shows."""
_HEAD_BYTES, _TAIL_BYTES = 24 * 1024, 40 * 1024
"""The bytes of the beginning and of the end of a longer text that the page shows."""


class LogSelection(StrEnum):
    """The trials whose logs and patches the page holds."""

    NONE = "none"
    FAILED = "failed"
    """Trials that did not complete, or whose verdict is not `pass`."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PackedLogs:
    """The logs of trials, for data islands: script elements of the page that hold only data."""

    islands: Mapping[str, str]
    """Base64 of gzip of JSON, by the key of the trial."""
    requested: int
    """The number of trials whose logs the page should hold."""

    @property
    def left_out(self) -> int:
        """The number of these trials whose logs would have made the page too large."""
        return self.requested - len(self.islands)


def pack(
    reader: LedgerReader,
    commits: Mapping[str | None, ReportedCommits],
    trials: Iterable[ReportedTrial],
    logs: LogSelection,
    max_bytes: int,
) -> PackedLogs:
    """Return the logs of the trials that `logs` selects, the worst first, as many as fit.

    `commits` has the commits of each run by `ReportedTrial.run_id`.
    """
    ranked = sorted(trials, key=lambda trial: trial.badness)
    requested = [trial for trial in ranked if _is_requested(trial, logs)]
    islands: dict[str, str] = {}
    with ExitStack() as stack:
        stored = {
            key: stack.enter_context(reader.trial_contents(run.root_id, run.run_id))
            for key, run in commits.items()
        }
        for trial in requested:
            of_run = stored[trial.run_id]
            texts = list(_inputs_and_reports(of_run, trial.schedule_idx))
            texts += _texts(of_run, trial.schedule_idx)
            island = _compressed(texts)
            max_bytes -= len(island)
            if max_bytes < 0:
                break
            islands[trial.key] = island
    return PackedLogs(islands, len(requested))


def _is_requested(trial: ReportedTrial, logs: LogSelection) -> bool:
    if trial.attempt is None or logs is LogSelection.NONE:
        return False
    return logs is LogSelection.ALL or not is_clean_pass(trial.status, trial.verdict)


def _texts(stored: TrialContents, schedule_idx: int) -> Iterator[JsonObject]:
    """Yield each text that is not empty, with its name, size, beginning, end and cut bytes."""
    evidence = stored.evidence(schedule_idx)
    references = evidence["evidence"]
    if (reference := references.get("trajectory")) is not None:
        yield _steps(stored, digest_of(reference), stored_cuts(evidence))
    for name in NAMES:
        reference = references.get(name)
        if reference is None:
            continue
        try:
            content = stored.artifact(digest_of(reference))
        except LedgerError as error:
            yield {"name": name, "size": None, "problem": plain_text(error.message)}
            continue
        if content:
            yield {"name": name, "size": len(content), **_truncated(content)}


def _steps(stored: TrialContents, sha256: str, cuts: list[str]) -> JsonObject:
    """Return the beginning of the agent's trajectory, as a conversation."""
    texts = [f"{cut_notice(cuts)}\n\n"] if cuts else []
    size, more = 0, ""
    try:
        with stored.open_artifact(sha256) as document:
            for text in conversation(AgentDocument(document).steps()):
                if size + len(text) > _HEAD_BYTES + _TAIL_BYTES:
                    more = "… and more steps: `labledger logs --phase steps` prints them"
                    texts.append(text[: _HEAD_BYTES if not size else 0])
                    break
                texts.append(text)
                size += len(text)
    except (LedgerError, MalformedJson) as error:
        return {"name": "steps", "size": None, "problem": plain_text(error.message)}
    return _text("steps", "".join([*texts, more]).rstrip("\n"))


def _metric_line(metric_id: str, value: float | str) -> str:
    return f"{metric_id}: {format(value, '.10g') if isinstance(value, float) else value}"


def _inputs_and_reports(stored: TrialContents, schedule_idx: int) -> Iterator[JsonObject]:
    """Yield a trial's task, and the metrics and events that it reported."""
    yield _text("task", _task(stored.task(schedule_idx)))
    if metrics := stored.metrics(schedule_idx):
        yield _text("metrics", "\n".join(starmap(_metric_line, metrics)))
    events, more = stored.events(schedule_idx, _MAX_EVENTS)
    if events:
        shown = [json.dumps(event, ensure_ascii=False) for event in events]
        if more:
            shown.append(f"… and {counted(more, 'more event')}")
        yield _text("events", "\n".join(shown))


def _task(row: JsonObject) -> str:
    """Return the task that the agent received: the prompt, then the other fields as JSON."""
    task = row.get("task")
    if not isinstance(task, dict) or not isinstance(task.get("prompt"), str):
        return json.dumps(task, indent=2, ensure_ascii=False)
    rest = {key: value for key, value in task.items() if key != "prompt"}
    more = f"\n\n{json.dumps(rest, indent=2, ensure_ascii=False)}" if rest else ""
    return f"{task['prompt']}{more}"


def _text(name: str, text: str) -> JsonObject:
    content = text.encode("utf-8", "backslashreplace")
    return {"name": name, "size": len(content), **_truncated(content)}


def _truncated(content: bytes) -> JsonObject:
    """Return the head and tail of a text, and the number of bytes cut out between them."""
    cut = len(content) - _HEAD_BYTES - _TAIL_BYTES
    if cut <= 0:
        return {"head": _decoded(content), "cut": 0, "tail": ""}
    head, tail = content[:_HEAD_BYTES], content[-_TAIL_BYTES:]
    return {"head": _decoded(head), "cut": cut, "tail": _decoded(tail)}


def _decoded(content: bytes) -> str:
    return plain_text(content.decode("utf-8", "replace"))


def _compressed(texts: list[JsonObject]) -> str:
    data = json.dumps(texts, ensure_ascii=False).encode()
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
