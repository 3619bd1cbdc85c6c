"""Warn before a run whose trials together may use more of a machine than it has.

The engine accepts any number of containers with any limits. Where processors are short, trials wait
for each other and run into their time limits; where memory is short, the kernel kills processes of
whichever trial. A run may begin nevertheless: few trials use all that they may.
"""

from __future__ import annotations

from collections.abc import Iterator

from labledger.executors.placement import Needs
from labledger.experiment.resolve import ResolvedExperiment
from labledger.maintenance.check_results import CheckResult
from labledger.text.byte_sizes import format_size


def check_shared_resources(
    experiment: ResolvedExperiment,
    slots: int,
    cpus: float | None,
    memory_bytes: int | None,
    *,
    machine: str = "this machine",
) -> Iterator[CheckResult]:
    """Yield a warning if as many trials as run at once may use more than a machine has.

    `slots` are the trials that it runs at once; `cpus` and `memory_bytes` are what its engine has,
    None if not known.
    """
    at_once = min(slots, experiment.total_slots)
    sealed = experiment.plan.is_sealed
    needs = {Needs.of_trial(merged, is_sealed=sealed) for _, merged in experiment.settings}
    wanted_cpus = max((each.cpus for each in needs if each.cpus is not None), default=None)
    if cpus is not None and wanted_cpus is not None and wanted_cpus <= cpus < at_once * wanted_cpus:
        yield CheckResult(
            "cpus",
            f"{at_once} trials at once may use {at_once * wanted_cpus:g} CPUs, and {machine} has "
            f"{cpus:g}: trials that wait for each other run into their time limits",
            ok=False,
            hint=f"run {cpus // wanted_cpus:g} at once (--max-concurrency; --slots of a worker)",
            warning=True,
        )
    limits = (each.memory_bytes for each in needs if each.memory_bytes is not None)
    wanted_bytes = max(limits, default=None)
    if memory_bytes is None or wanted_bytes is None or at_once * wanted_bytes <= memory_bytes:
        return
    has = f"{machine} has {format_size(memory_bytes)}"
    if wanted_bytes > memory_bytes:
        detail = (
            f"runtime.resources.memory: one trial may use {format_size(wanted_bytes)}, and {has}: "
            "such a limit limits nothing"
        )
        hint = "lower `memory`, or use a larger machine"
    else:
        detail = (
            f"{at_once} trials at once may use {format_size(at_once * wanted_bytes)} of memory, "
            f"and {has}: where it is used up, the kernel kills processes of any of them"
        )
        hint = f"run {memory_bytes // wanted_bytes} at once, or lower `memory`"
    yield CheckResult("memory", detail, ok=False, hint=hint, warning=True)
