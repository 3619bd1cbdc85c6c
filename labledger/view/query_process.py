"""Starts the process that answers a query of the SQL page, and kills it after its time limit."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass

from labledger.errors import LabLedgerError, LedgerError, QueryFailed
from labledger.host_programs import SAFE_FOLDER, module_command
from labledger.ledger.query import too_slow
from labledger.records import JsonObject

_PROGRAM = "labledger.view.query_program"
_ENVIRONMENT = ("HOME", "TMPDIR", "SQLITE_TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH")
"""The environment variables of the process. None of them holds a secret."""
_GRACE_S = 1.0
"""How long after the time limit the process is killed, in seconds."""
_START_S = 60.0
"""How long it may take to start, in seconds."""
_MAX_ANSWER = 256 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """A query, the format of its answer (`json` or `csv`), and its limits."""

    path: str
    """The ledger."""
    sql: str
    form: str
    max_rows: int
    max_bytes: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The result of a query."""

    head: JsonObject
    """`columns`, `rows`, and `limit` if there are more rows; empty for CSV."""
    text: bytes
    """The CSV, if requested."""


def ask(question: Question) -> QueryAnswer:
    """Return the answer to a question.

    Raises `LedgerError`, and `QueryFailed` if the query is wrong or reaches its time limit.
    """
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    with subprocess.Popen(
        module_command(_PROGRAM),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=SAFE_FOLDER,
    ) as process:
        try:
            return _answer_of(process, question)
        finally:
            process.kill()


def _answer_of(process: subprocess.Popen[bytes], question: Question) -> QueryAnswer:
    assert process.stdin is not None
    assert process.stdout is not None
    with _Killer(process, _START_S):
        is_ready = process.stdout.readline() == b"ready\n"
    if not is_ready:
        raise LabLedgerError("the process for the query did not start", hint="try again")
    with _Killer(process, question.limit_s + _GRACE_S) as killer:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asdict(question)).encode() + b"\n")
            process.stdin.flush()
        # The process ends when its stdin does.
        answer = process.stdout.read(_MAX_ANSWER)
    line, _, text = answer.partition(b"\n")
    if killer.has_killed or not line:
        raise too_slow(question.limit_s) if killer.has_killed else _ended()
    head = json.loads(line)
    if (error := head.get("error")) is not None:
        kind = QueryFailed if error["is_query"] else LedgerError
        raise kind(error["message"], hint=error["hint"])
    return QueryAnswer(head, text)


def _ended() -> QueryFailed:
    return QueryFailed(
        "the query needed more memory or processor time than it may use",
        hint="ask for fewer rows, or use `labledger query`, which has no limit",
    )


class _Killer:
    """Kills a process unless the block ends in time."""

    def __init__(self, process: subprocess.Popen[bytes], limit_s: float) -> None:
        self._process = process
        self._timer = threading.Timer(limit_s, self._kill)
        self.has_killed = False

    def __enter__(self) -> _Killer:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _kill(self) -> None:
        self.has_killed = True
        self._process.kill()
