"""Providers of models, as an experiment names them: where they are, and where their key comes from.

Nothing here holds a key: a `KeySource` says where one is read, so that it may be stored and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from labledger.records.json_codec import Section
from labledger.records.model_calls import Api


@dataclass(frozen=True, slots=True)
class KeySource(Section):
    """Where the key of a provider is read: one of a variable, a file and a command."""

    env: str | None = None
    """An environment variable."""
    file: str | None = None
    """A file that holds the key alone."""
    command: tuple[str, ...] | None = None
    """A command that writes the key to its standard output."""

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"env", "file", "command"})

    def __str__(self) -> str:
        if self.env is not None:
            return f"the environment variable {self.env}"
        if self.file is not None:
            return f"the file {self.file}"
        return f"the command {' '.join(self.command or ())}"


@dataclass(frozen=True, slots=True)
class ProviderConfig(Section):
    """A provider: its name, which is the first part of the path that agents use, and the rest."""

    name: str
    apis: tuple[Api, ...]
    """What it speaks. The path of a request decides which of them is meant."""
    upstream: str
    """Its address; what follows the name in an agent's path is appended as it is."""
    key: KeySource | None = None
    """None for a provider that needs no key."""
    auth_header: str | None = None
    """The header that carries the key; None for the usual one of the API."""

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"key", "auth_header"})


def upstream_problem(address: str) -> str | None:
    """Return what is wrong with the address of a provider, or None."""
    try:
        parts = urlsplit(address)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return "is no address"
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_valid:
        return "is no address that begins with https:// or http://"
    if parts.username is not None or parts.password is not None:
        return "holds a user's name or password; use `key`"
    if parts.query or parts.fragment or address.endswith(("/", "?", "#")):
        return "ends with a slash, a query or a fragment"
    if not address.isascii() or not address.isprintable() or " " in address:
        return "has characters that an address cannot have"
    return None


DEFAULT_PROVIDERS: Mapping[str, ProviderConfig] = {
    provider.name: provider
    for provider in (
        ProviderConfig(
            "anthropic",
            (Api.ANTHROPIC_MESSAGES,),
            "https://api.anthropic.com",
            KeySource(env="ANTHROPIC_API_KEY"),
        ),
        ProviderConfig(
            "openai",
            (Api.OPENAI_RESPONSES, Api.OPENAI_CHAT),
            "https://api.openai.com",
            KeySource(env="OPENAI_API_KEY"),
        ),
        ProviderConfig(
            "google",
            (Api.GEMINI,),
            "https://generativelanguage.googleapis.com",
            KeySource(env="GEMINI_API_KEY"),
        ),
    )
}
"""Providers that an experiment may use without saying where they are."""
