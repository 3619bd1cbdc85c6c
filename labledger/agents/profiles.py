"""Profiles of agents: what `profile.toml` says, and where profiles are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from labledger.records.model_calls import Api

Value = str | int | float | bool
"""The value of an option."""


class OptionType(StrEnum):
    """The type of an option's value."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True)
class ProfileOption:
    """A setting of the agent that an experiment may choose."""

    name: str
    type: OptionType
    description: str
    default: Value | None = None
    """None leaves the agent's own default."""
    choices: tuple[str, ...] = ()
    """The only values, of a text; empty for any."""
    arguments: tuple[str, ...] = ()
    """Arguments of the agent's command, in which ``{value}`` is the value. Of a boolean they are
    given where it is true."""
    variable: str | None = None
    """An environment variable that gets the value."""


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """An agent program that labledger can install and start."""

    name: str
    description: str
    license: str
    homepage: str
    version: str
    """The version that is tested, and taken where an experiment names none."""
    apis: tuple[Api, ...]
    """The APIs of models that it speaks, the usual one first."""
    folder: Path
    """Where its `profile.toml` and `launch.sh` are."""
    options: Mapping[str, ProfileOption]
    logs: Mapping[str, str]
    """Its own logs: by name, the file's name below the folder of logs; `stdout` is its output."""
    needs: tuple[str, ...] = ()
    """Programs of the image that it cannot work without, such as ``bash``."""


def find_profiles() -> Mapping[str, AgentProfile]:
    """Return all profiles by name, sorted: those of labledger and of other packages.

    A package adds profiles by entry points of the group `labledger.agents`: each has the profile's
    name, and loads the path of its folder. Raises `InvalidInput` with the problems of all of them.
    """
    raise NotImplementedError


def load_profile(name: str) -> AgentProfile:
    """Return the profile with a name.

    Raises `InvalidInput` if there is none, with a near name, and with all problems of its file.
    """
    raise NotImplementedError
