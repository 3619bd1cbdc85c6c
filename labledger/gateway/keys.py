"""The keys of providers: read where an experiment says that they are, and masked in answers.

A key is in memory alone. No message here holds one, nor what a command wrote. Where a provider's
answer repeats a key, its bytes are replaced by as many `*`, so that lengths stay as announced; what
an answer ends with is held back only where it may be the beginning of the key.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from labledger.errors import InvalidInput, Problem
from labledger.records.model_grants import KeySource, ProviderConfig

_COMMAND_S = 60.0
"""How long a command may take, in seconds."""
_MAX_KEY = 8192
_SHORTEST_MASKED = 8
"""Shorter keys are words such as `EMPTY`, which no provider means seriously."""


def read_keys(
    providers: Iterable[ProviderConfig], environment: Mapping[str, str] = os.environ
) -> Mapping[KeySource, str]:
    """Return the keys of providers, of which some may be in the environment.

    Raises `InvalidInput` with all that cannot be read.
    """
    keys: dict[KeySource, str] = {}
    problems: list[Problem] = []
    for provider in providers:
        source = provider.key
        if source is None or source in keys:
            continue
        try:
            keys[source] = read_key(source, environment)
        except ValueError as error:
            problems.append(Problem(provider.name, f"{source} {error}"))
    if problems:
        raise InvalidInput("the keys of model providers", problems)
    return keys


def read_key(source: KeySource, environment: Mapping[str, str] = os.environ) -> str:
    """Return a key. Raises `ValueError`, whose message continues a sentence on the source."""
    if source.env is not None:
        text = environment.get(source.env)
        if text is None:
            raise ValueError("is not set")
    elif source.file is not None:
        text = _read_file(Path(source.file).expanduser())
    else:
        text = _run(source.command or ())
    key = text.strip()
    if not key:
        raise ValueError("holds no key: it is empty")
    if len(key) > _MAX_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("holds no key: a key is one word of printable ASCII characters")
    return key


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY + 3).decode("ascii", "replace")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def _run(command: tuple[str, ...]) -> str:
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, check=False, timeout=_COMMAND_S, shell=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"did not end within {_COMMAND_S:g} seconds") from None
    except OSError as error:
        raise ValueError(f"could not be started: {error.strerror}") from None
    if ended.returncode != 0:
        raise ValueError(f"ended with exit code {ended.returncode}")
    return ended.stdout.decode("ascii", "replace")


class KeyMask:
    """Masks one key in one stream of bytes."""

    def __init__(self, key: str | None) -> None:
        self._key = (key or "").encode("ascii")
        self._is_active = len(self._key) >= _SHORTEST_MASKED
        self._tail = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what may pass once a piece has come."""
        if not self._is_active:
            return piece
        data = (self._tail + piece).replace(self._key, b"*" * len(self._key))
        held = self._beginning(data)
        self._tail = data[len(data) - held :]
        return data[: len(data) - held]

    def end(self) -> bytes:
        """Return what was held back, once nothing more comes."""
        tail, self._tail = self._tail, b""
        return tail

    def _beginning(self, data: bytes) -> int:
        """Return how many bytes at the end of the data are a beginning of the key."""
        longest = min(len(data), len(self._key) - 1)
        start = data.find(self._key[:1], len(data) - longest)
        while start >= 0:
            if self._key.startswith(data[start:]):
                return len(data) - start
            start = data.find(self._key[:1], start + 1)
        return 0


def masked(text: str, key: str | None) -> str:
    """Return a text in which a key is masked."""
    return text.replace(key, "*" * len(key)) if key and len(key) >= _SHORTEST_MASKED else text
