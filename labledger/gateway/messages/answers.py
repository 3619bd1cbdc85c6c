"""An answer to a request, from a provider or a record, or a failure to get one.

The agent gets all headers of the answer, except the headers of one connection. The provider gets
only request headers on an allow-list, because others could choose another account, or provoke a
failure that looks like the provider's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from labledger.gateway.keys import masked

Headers = list[tuple[str, str]]

_OF_A_CONNECTION = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade", "http2-settings"),
}
_PASSED = frozenset(
    {
        *("accept", "content-type", "user-agent"),
        *("anthropic-beta", "anthropic-dangerous-direct-browser-access", "anthropic-version"),
        *("openai-beta", "originator", "version", "session_id", "session-id"),
        *("conversation_id", "thread-id", "x-app", "x-client-request-id", "x-goog-api-client"),
        *("x-session-affinity", "x-session-id"),
    }
)
"""The request headers that the provider gets, in lower case. Agents with a profile use them to
describe their request and themselves."""
_PASSED_PREFIXES = ("x-stainless-", "x-codex-", "x-claude-code-")
_MAX_PASSED = 64
"""The most headers of a request that pass. Below: the most characters of a name and a value."""
_MAX_NAME = 100
_MAX_VALUE = 4096
_REQUEST_IDS = ("request-id", "x-request-id")


class ProviderAnswer(Protocol):
    """An answer whose headers have arrived."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Headers:
        """The unchanged headers."""

    @property
    def key(self) -> str | None:
        """The provider's key, which must be masked in the answer."""

    @property
    def is_framed(self) -> bool:
        """Whether a length or chunks mark the end of the body.

        `pieces` then raises `AnswerCut` if anything is missing. Otherwise the connection closes in
        the same way after a whole answer and after a cut.
        """

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises `AnswerCut` if it ends too early."""

    def close(self) -> None:
        """Stop reading the answer."""


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
    """How long it waited because of the provider's limits, in seconds."""
    sent: bool = False
    """Whether the provider may have the request, and has not reported a limit for it."""


def for_provider(received: Iterable[tuple[str, str]], key_headers: Mapping[str, str]) -> Headers:
    """Return the headers of a request with the provider's key instead of the agent's token.

    Only headers on the allow-list pass, each once, with printable ASCII of a bounded length. The
    result asks for an answer without compression, so that the gateway can read its usage.
    """
    key_names = {name.lower() for name in key_headers}
    kept: dict[str, tuple[str, str]] = {}
    for name, value in received:
        lower = name.lower()
        if lower not in key_names and lower not in kept and _passes(lower, value):
            kept[lower] = (name, value)
    passed = list(kept.values())[:_MAX_PASSED]
    return [*passed, ("Accept-Encoding", "identity"), *key_headers.items()]


def _passes(name: str, value: str) -> bool:
    """Return whether the provider gets a header, by its name in lower case and its value."""
    is_listed = name in _PASSED or name.startswith(_PASSED_PREFIXES)
    is_short = len(name) <= _MAX_NAME and len(value) <= _MAX_VALUE
    return is_listed and is_short and value.isascii() and value.isprintable()


def for_agent(received: Iterable[tuple[str, str]], key: str | None) -> Headers:
    """Return the headers of an answer, in which the key is masked."""
    received = list(received)
    removed = _connection_names(received)
    if any(name.lower() == "content-encoding" for name, _ in received):
        # The HTTP library decodes the body, so that the gateway can read its usage.
        removed |= {"content-encoding", "content-length"}
    return [(name, masked(value, key)) for name, value in received if name.lower() not in removed]


def _connection_names(headers: Headers) -> set[str]:
    named = (value.split(",") for name, value in headers if name.lower() == "connection")
    return _OF_A_CONNECTION | {name.strip().lower() for names in named for name in names}


def request_id(headers: Mapping[str, str], longest: int) -> str | None:
    """Return the provider's id of a call, cut to `longest` characters; None without one."""
    value = next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)
    return value[:longest] if value else None
