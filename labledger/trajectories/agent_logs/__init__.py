"""The logs that agents write of themselves, by the names that their profiles give them.

Each module reads one form: bytes in, steps out. What it does not understand is counted in
`LogFacts.unread`; only a failing disk raises. All of it is what the agent claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import BinaryIO

from labledger.trajectories.agent_logs import (
    claude_code,
    codex,
    gemini_cli,
    mini_swe_agent,
    opencode,
    openhands,
)
from labledger.trajectories.atif import Step
from labledger.trajectories.json_reading import LogFacts

LogReader = Callable[[BinaryIO, LogFacts], Iterator[Step]]

READERS: Mapping[str, LogReader] = {
    "claude-code.stream": claude_code.read,
    "codex.stream": codex.read,
    "gemini-cli.stream": gemini_cli.read,
    "qwen-code.stream": claude_code.read,
    "opencode.stream": opencode.read,
    "mini-swe-agent.trajectory": mini_swe_agent.read,
    "openhands.stream": openhands.read,
}
"""The reader of each log, by the names of the profile and of the log in it."""
GROUP = "labledger.agent_logs"
"""The group of entry points by which other packages add readers, under names such as these."""


def find_reader(profile: str, log: str) -> LogReader | None:
    """Return the reader of an agent's log; None if nothing reads it."""
    name = f"{profile}.{log}"
    if name in READERS:
        return READERS[name]
    for entry_point in entry_points(group=GROUP, name=name):
        reader: LogReader = entry_point.load()
        return reader
    return None
