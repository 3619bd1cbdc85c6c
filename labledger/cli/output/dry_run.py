"""`labledger run --dry-run`: everything that would run, and in which order."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from labledger.cli.output.console import out, out_json, out_lines, say
from labledger.text.phrases import counted

if TYPE_CHECKING:
    from labledger.experiment.resolve import ResolvedExperiment

_SHOWN = 200


def print_plan(experiment: ResolvedExperiment, *, as_json: bool) -> None:
    """The resolved experiment as YAML and the schedule, or both as JSON."""
    if as_json:
        slots = [asdict(slot) for slot in experiment.slots()]
        digest = experiment.digest
        out_json({"digest": digest, "resolved": experiment.document, "schedule": slots})
        return
    import yaml

    out_lines(yaml.safe_dump(experiment.document, sort_keys=False, allow_unicode=True))
    out(f"# digest {experiment.digest}")
    out(f"# grader: {experiment.plan.sealing.meaning}")
    out(f"# schedule: {counted(experiment.total_slots, 'slot')}")
    for slot in islice(experiment.slots(), _SHOWN):
        out(f"# {slot.schedule_idx:6}  {slot.variant_id}  {slot.task_id}  {slot.repl_idx}")
    if experiment.total_slots > _SHOWN:
        out(f"# … and {experiment.total_slots - _SHOWN} more; --json prints them all")
    say("nothing was run")
