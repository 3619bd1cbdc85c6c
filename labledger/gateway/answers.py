"""An answer to a request, wherever it comes from: a provider, a record, or a failure to get one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from labledger.gateway.headers import Headers


class Answer(Protocol):
    """An answer whose head has come."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Headers:
        """The headers as they came."""

    @property
    def key(self) -> str | None:
        """The key that the answer must not show."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises `AnswerCut` if it ends too early."""

    def close(self) -> None:
        """Take no more of it."""


class AnswerCut(Exception):
    """An answer ended too early. `reason` is the word for the journal."""

    def __init__(self, reason: str = "provider_cut") -> None:
        super().__init__(reason)
        self.reason = reason


class NoAnswer(Exception):
    """A provider gave no answer. `reason` is the word for the journal, `status` for the agent."""

    def __init__(self, reason: str, status: int, message: str) -> None:
        super().__init__(message)
        self.reason, self.status, self.message = reason, status, message


@dataclass
class Progress:
    """How far a call has come on its way to the provider."""

    waited_s: float = 0.0
    """How long it waited for limits of the provider, in seconds."""
    sent: bool = False
    """Whether the provider may have it, and has not said that it met a limit."""
