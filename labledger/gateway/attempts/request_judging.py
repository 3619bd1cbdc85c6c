"""Judge requests without delaying others: large ones in separate processes.

Small requests are judged in this process, one at a time. Middle and large requests have one worker
process each, so that a usual request does not wait for a huge one. Threads would not help, because
Python runs one at a time. Workers have no keys and limited memory.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO, Any

from labledger.gateway.families.answer_reader import CallSettings
from labledger.gateway.families.family import Asked, CallRefused
from labledger.gateway.messages.admission import Admission, Target
from labledger.gateway.messages.canonical_requests import CanonicalRequest, canonical_request
from labledger.host_programs import SAFE_FOLDER, code_command

_HERE = (128 << 10, 1_000)
_HERE_CANONICAL = (8 << 10, 1_000)
_MIDDLE = (2 << 20, 20_000)
_MIDDLE_CANONICAL = (512 << 10, 20_000)
"""The most bytes and values of a request that is judged here, or by the middle worker.

Judging takes a millisecond or two here, and some tens of milliseconds there. The limits are lower
if the canonical form is needed, too.
"""
_LIMIT_S = 60.0
"""How long judging a request may take, in seconds."""
_MEMORY = 2 << 30
"""The most bytes of address space of a worker."""
_KEPT_BYTES = 8 << 20
"""A worker ends after a larger body, which frees its memory."""
_PROGRAM = f"from {__name__} import main; main()"
_HEAD = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Judged:
    """An admissible request."""

    asked: Asked
    settings: CallSettings
    canonical: CanonicalRequest | None
    """Its canonical form; None if it is not needed."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A request to a worker about a body."""

    admission: Admission
    target: Target
    canonical: bool


def judge(admission: Admission, target: Target, body: bytes, *, canonical: bool) -> Judged:
    """Return the facts of an admissible body. Raises `CallRefused`."""
    asked, document = admission.read(target, body)
    settings = target.family.read_settings(document)
    if not canonical:
        return Judged(asked, settings, None)
    form = canonical_request(target.provider.name, target.path, document)
    return Judged(asked, settings, form)


class RequestJudges:
    """The workers of a gateway. For one event loop."""

    def __init__(self) -> None:
        self._here = asyncio.Lock()
        self._middle, self._large = _Worker(), _Worker()

    async def judge(
        self, admission: Admission, target: Target, body: bytes, *, canonical: bool
    ) -> Judged:
        """Return the facts of an admissible body, without delaying others. Raises `CallRefused`."""
        if _fits(body, _HERE_CANONICAL if canonical else _HERE):
            async with self._here:
                return judge(admission, target, body, canonical=canonical)
        is_middle = _fits(body, _MIDDLE_CANONICAL if canonical else _MIDDLE)
        worker = self._middle if is_middle else self._large
        return await worker.judge(_Question(admission, target, canonical), body)

    def close(self) -> None:
        """End the workers."""
        self._middle.end()
        self._large.end()


def _fits(body: bytes, limits: tuple[int, int]) -> bool:
    """Return whether a body is within limits of bytes and of values, which are overestimated."""
    size, values = limits
    return len(body) <= size and sum(map(body.count, (b",", b"[", b"{"))) <= values


class _Worker:
    """A process that judges one request after the other. It is started when first needed.

    Gateway and worker exchange pickle over pipes that no other process has.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    async def judge(self, question: _Question, body: bytes) -> Judged:
        """Return the facts of an admissible body. Raises `CallRefused`."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            answering = loop.run_in_executor(None, self._ask, question, body)
            try:
                answer = await asyncio.shield(answering)
            except asyncio.CancelledError:
                # The thread ends with its process. The next request starts a new one.
                self.end()
                await asyncio.wait({answering})
                answering.exception()
                raise
            if len(body) > _KEPT_BYTES:
                self.end()
        if isinstance(answer, Judged):
            return answer
        raise CallRefused(*answer)

    def _ask(self, question: _Question, body: bytes) -> Judged | tuple[int, str, str]:
        """Send a question to the process. Return the answer, or the parts of a refusal."""
        process = self._started()
        timer = threading.Timer(_LIMIT_S, process.kill)
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _write(process.stdin, pickle.dumps(question), body)
            answer: Judged | tuple[int, str, str] = pickle.load(process.stdout)  # noqa: S301
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            self.end()
            return 413, "body", "labledger: the body takes too much time or memory to read"
        finally:
            timer.cancel()
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                code_command(_PROGRAM),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=SAFE_FOLDER,
            )
        return self._process

    def end(self) -> None:
        """End the process, if one runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _write(stream: IO[bytes], question: bytes, body: bytes) -> None:
    stream.write(_HEAD.pack(len(question), len(body)))
    stream.write(question)
    stream.write(body)
    stream.flush()


def _answer(question: _Question, body: bytes) -> Any:
    try:
        return judge(question.admission, question.target, body, canonical=question.canonical)
    except CallRefused as refused:
        return refused.status, refused.reason, refused.message


def main() -> None:
    """Answer requests from standard input on standard output, until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    while head := sys.stdin.buffer.read(_HEAD.size):
        question, body = (sys.stdin.buffer.read(size) for size in _HEAD.unpack(head))
        answer = _answer(pickle.loads(question), body)  # noqa: S301
        del body
        pickle.dump(answer, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
        sys.stdout.buffer.flush()
