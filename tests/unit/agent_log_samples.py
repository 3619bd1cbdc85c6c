"""Logs that unmodified agents wrote against the scripted provider, and their steps."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from labledger.trajectories.agent_logs import READERS
from labledger.trajectories.atif import Step
from labledger.trajectories.json_reading import LogFacts

SAMPLES = Path(__file__).parent / "agent_logs"
LOGS = {path.stem: path for path in sorted(SAMPLES.iterdir())}


def read(name: str, content: bytes) -> tuple[list[Step], LogFacts]:
    facts = LogFacts()
    steps = list(READERS[name](io.BytesIO(content), facts))
    return [replace(step, step_id=number) for number, step in enumerate(steps, 1)], facts
