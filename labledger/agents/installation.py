"""Install agents into folders that containers mount: once for each version and kind of image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from labledger.agents.profiles import AgentProfile
from labledger.records.json_codec import JsonForm


class Libc(StrEnum):
    """The C library of an image, by which native programs are chosen."""

    GLIBC = "glibc"
    MUSL = "musl"
    NONE = "none"
    """An image without either loader, such as one with a static busybox alone."""


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """What is installed: an agent at a version, for images of one kind."""

    profile: AgentProfile
    version: str
    libc: Libc = Libc.GLIBC
    machine: str = "x86_64"
    """The architecture as `uname -m` prints it."""


@dataclass(frozen=True, slots=True)
class InstalledAgent(JsonForm):
    """An installed agent. Its JSON form is evidence of the trials that it ran in."""

    name: str
    version: str
    libc: Libc
    machine: str
    folder: Path
    """Mounted read-only at `launch.folder_of(name)`."""
    tree_sha256: str
    """The digest of all files: names, contents and permissions."""
    size: int
    """In bytes."""
    packages: Mapping[str, str]
    """The integrity of each package by its name and version, as its registry states it."""


def check_version(profile: AgentProfile, version: str) -> None:
    """Raise `InvalidInput` for a version that is not pinned, such as ``latest`` or ``^2``.

    The message names the newest version that the package's registry knows, if it can be reached.
    """
    raise NotImplementedError


def unsupported(target: AgentTarget) -> str | None:
    """Return why an agent cannot run in images of a kind, or cannot be installed on this machine.

    None if it can. Nothing is installed to find out.
    """
    raise NotImplementedError


def find_installed(target: AgentTarget, cache: Path | None = None) -> InstalledAgent | None:
    """Return an agent that is installed and unchanged, else None.

    `cache` is the folder of installed agents; None for that in the user's cache.
    """
    raise NotImplementedError


def install(
    targets: Sequence[AgentTarget],
    cache: Path | None = None,
    *,
    report: Callable[[str], None] = lambda _: None,
) -> list[InstalledAgent]:
    """Install agents that are not there yet, several at a time, and return all in their order.

    Folders that were changed or are incomplete are made again. `report` gets a line whenever
    something begins or ends. Raises `InvalidInput` with every agent that could not be installed;
    of an agent that fails, nothing remains.
    """
    raise NotImplementedError
