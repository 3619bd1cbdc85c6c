"""A project whose agents report many events: the most that a coordinator has to take in."""

from __future__ import annotations

from pathlib import Path

from experiments import Project

EVENT_BYTES = 300
"""How long an event is, at least."""

_AGENT = """\
awk -v n={count} 'BEGIN {{
  text = sprintf("%{length}s", ""); gsub(" ", "x", text)
  for (i = 0; i < n; i++)
    print "{{\\"type\\": \\"step\\", \\"tokens\\": 7, \\"i\\": " i ", \\"text\\": \\"" text "\\"}}"
}}' >"$AGENTLAB_TRAJECTORY_PATH"
{then}answer=right
"""


def write_project(
    folder: Path, trials: int, events: int, *, first_is_last: bool = False
) -> Project:
    """Write an experiment of so many trials at once that report so many events each.

    With `first_is_last` the others are staged before slot 0 ends.
    """
    agent = _AGENT.format(count=events, length=EVENT_BYTES - 48, then="{then}")
    scripts = {f"t{n:03d}": agent.replace("{then}", "") for n in range(trials)}
    if first_is_last:
        scripts["t000"] = agent.replace("{then}", "sleep 3; ")
    project = Project(folder, scripts, max_concurrency=trials)
    del project.document["variant_plan"]
    tokens = {"id": "tokens", "from": "events", "event": "step", "field": "tokens"}
    project.document["metrics"] = [tokens | {"aggregate": "sum"}]
    project.document["runtime"]["resources"] = {"memory": "64m", "pids": 32}
    project.save()
    return project
