"""Pack the logs and patches of trials for a page: cut, compressed, and no more than fit.

The worst trials come first. All text is made plain before it is packed, because the page's script
shows it as it is.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from labledger.errors import LedgerError
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject
from labledger.records.artifacts import digest_of
from labledger.report.document import plain
from labledger.report.ledger_queries import ReportedCommits, Trial
from labledger.report.options import LogSelection
from labledger.text.phrases import counted
from labledger.text.terminal_text import plain_text

NAMES = (
    *("workspace_patch", "agent_stdout", "agent_stderr", "grader_stdout", "grader_stderr"),
    *("setup_stdout", "setup_stderr", "trial_output"),
)
"""Which evidence is shown, and in which order."""

_EVENTS = 500
"""How many events of a trial are shown."""
_HEAD, _TAIL = 24 * 1024, 40 * 1024
"""How many bytes of a longer text are kept, of its beginning and of its end."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The logs of trials, each as Base64 of gzip of JSON, by slot."""

    islands: Mapping[int, str]
    wanted: int
    """How many trials should have their logs in the page."""

    @property
    def left_out(self) -> int:
        """How many have not, because the page would have become too large."""
        return self.wanted - len(self.islands)


def pack(
    reader: LedgerReader,
    commits: ReportedCommits,
    trials: Iterable[Trial],
    logs: LogSelection,
    max_bytes: int,
) -> Packed:
    """Return the logs of the trials that `logs` names, worst first, as many as fit."""
    ranked = sorted(trials, key=lambda trial: trial.badness)
    wanted = [trial.schedule_idx for trial in ranked if _is_wanted(trial, logs)]
    islands: dict[int, str] = {}
    for schedule_idx in wanted:
        texts = list(_inputs_and_reports(reader, commits.root_id, schedule_idx))
        attempts = _records(reader, commits.run_id, "evidence", schedule_idx)
        texts += _texts(reader, attempts[-1]["evidence"] if attempts else {})
        island = _compressed(texts)
        max_bytes -= len(island)
        if max_bytes < 0:
            break
        islands[schedule_idx] = island
    return Packed(islands, len(wanted))


def _is_wanted(trial: Trial, logs: LogSelection) -> bool:
    if trial.attempt is None or logs is LogSelection.NONE:
        return False
    has_passed = trial.status == "completed" and trial.verdict == "pass"
    return logs is LogSelection.ALL or not has_passed


def _texts(reader: LedgerReader, references: Mapping[str, str]) -> Iterator[JsonObject]:
    """Yield each text that is not empty: its name, its size, its ends and what is cut."""
    for name in NAMES:
        reference = references.get(name)
        if reference is None:
            continue
        try:
            content = reader.artifact(digest_of(reference))
        except LedgerError as error:
            yield {"name": name, "size": None, "problem": error.message}
            continue
        if content:
            yield {"name": name, "size": len(content), **_cut(content)}


def _metric_line(metric: JsonObject) -> str:
    value = metric["value"]
    return f"{metric['metric_id']}: {format(value, '.10g') if isinstance(value, float) else value}"


def _inputs_and_reports(
    reader: LedgerReader, run_id: str, schedule_idx: int
) -> Iterator[JsonObject]:
    """Yield a trial's task, and the metrics and events that it reported."""
    task_id = reader.slot(run_id, schedule_idx).task_id
    yield _text("task", _task(reader.task(run_id, task_id)))
    if metrics := _records(reader, run_id, "metrics", schedule_idx):
        yield _text("metrics", "\n".join(map(_metric_line, metrics)))
    if events := _records(reader, run_id, "events", schedule_idx):
        shown = [json.dumps(event["event"], ensure_ascii=False) for event in events[:_EVENTS]]
        if len(events) > _EVENTS:
            shown.append(f"… and {counted(len(events) - _EVENTS, 'more event')}")
        yield _text("events", "\n".join(shown))


def _records(reader: LedgerReader, run_id: str, kind: str, schedule_idx: int) -> list[JsonObject]:
    """Return a slot's records of one kind, in order of its attempts."""
    lines = reader.record_lines(run_id, kind, schedule_idx, schedule_idx + 1)
    return [json.loads(line) for _, line in lines]


def _task(row: JsonObject) -> str:
    """Return what the agent was asked: the prompt as it is, then the rest of the task."""
    task = row.get("task")
    if not isinstance(task, dict) or not isinstance(task.get("prompt"), str):
        return json.dumps(task, indent=2, ensure_ascii=False)
    rest = {key: value for key, value in task.items() if key != "prompt"}
    more = f"\n\n{json.dumps(rest, indent=2, ensure_ascii=False)}" if rest else ""
    return f"{task['prompt']}{more}"


def _text(name: str, text: str) -> JsonObject:
    content = text.encode("utf-8", "backslashreplace")
    return {"name": name, "size": len(content), **_cut(content)}


def _cut(content: bytes) -> JsonObject:
    if len(content) <= _HEAD + _TAIL:
        return {"head": _decoded(content), "cut": 0, "tail": ""}
    cut = len(content) - _HEAD - _TAIL
    return {"head": _decoded(content[:_HEAD]), "cut": cut, "tail": _decoded(content[-_TAIL:])}


def _decoded(content: bytes) -> str:
    return plain_text(content.decode("utf-8", "replace"))


def _compressed(texts: list[JsonObject]) -> str:
    data = json.dumps(plain(texts), ensure_ascii=False).encode()
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
