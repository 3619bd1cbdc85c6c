"""`labledger run --dry-run`: everything that would run, and in which order."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from labledger.cli.output.console import out, out_json, out_lines, say
from labledger.text.phrases import counted

if TYPE_CHECKING:
    from labledger.api import RunPlan

_SHOWN = 200


def print_plan(plan: RunPlan, *, as_json: bool) -> None:
    """Print the resolved experiment as YAML, and the schedule; or both as JSON."""
    if as_json:
        slots = [asdict(slot) for slot in plan.slots()]
        out_json({"digest": plan.digest, "resolved": plan.resolved, "schedule": slots})
        return
    import yaml

    out_lines(yaml.safe_dump(plan.resolved, sort_keys=False, allow_unicode=True))
    out(f"# digest {plan.digest}")
    out(f"# grader: {plan.sealing}")
    out(f"# schedule: {counted(plan.total_slots, 'slot')}")
    for slot in islice(plan.slots(), _SHOWN):
        out(f"# {slot.schedule_idx:6}  {slot.variant_id}  {slot.task_id}  {slot.repl_idx}")
    if plan.total_slots > _SHOWN:
        out(f"# … and {plan.total_slots - _SHOWN} more; --json prints them all")
    say("nothing was run")
