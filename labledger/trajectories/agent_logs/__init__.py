"""The logs that agents write of themselves, each by the name that profiles give it.

Each module reads one form: bytes in, steps out. What it does not understand is counted in
`LogFacts.unread`; only a failing disk raises. All of it is what the agent claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

from labledger.trajectories.agent_logs import (
    claude_code,
    codex,
    gemini_cli,
    mini_swe_agent,
    opencode,
)
from labledger.trajectories.atif import Step
from labledger.trajectories.json_reading import LogFacts

LogReader = Callable[[BinaryIO, LogFacts], Iterator[Step]]

READERS: Mapping[str, LogReader] = {
    "claude-code-stream": claude_code.read,
    "codex-events": codex.read,
    "gemini-cli-stream": gemini_cli.read,
    "qwen-code-stream": claude_code.read,
    "opencode-events": opencode.read,
    "mini-swe-agent-trajectory": mini_swe_agent.read,
}
"""The reader of each form, by the name of the log in a profile."""
