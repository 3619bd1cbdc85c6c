"""The logs that agents write themselves, by their names in the agents' profiles.

Each module reads one form. Lines that it does not understand are counted in `LogFacts.unread`. Only
a failing disk raises an error. All content is the agent's claim.

Read first: `claude_code`, `codex`, `openhands`.
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
"""The readers of logs, by the names of profile and log."""
GROUP = "labledger.agent_logs"
"""The group of entry points with which other packages add readers, under such names."""


def find_reader(profile: str, log: str) -> LogReader | None:
    """Return the reader of an agent's log; None if there is none."""
    name = f"{profile}.{log}"
    if name in READERS:
        return READERS[name]
    for entry_point in entry_points(group=GROUP, name=name):
        reader: LogReader = entry_point.load()
        return reader
    return None
