"""What, beside the variants, could be why two sides differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labledger.ledger.model import RunInfo
from labledger.records import RunStatus

_BENCHMARK = ("adapter_id", "name", "version", "split")


def warnings(a: RunInfo, b: RunInfo) -> tuple[str, ...]:
    """A sentence for each thing that a reader of the comparison should know of its runs."""
    return tuple(_warnings(a, b))


def _warnings(a: RunInfo, b: RunInfo) -> Iterator[str]:
    for run in (a,) if a.run_id == b.run_id else (a, b):
        if run.status is not RunStatus.COMPLETED:
            done = f"{run.next_schedule_idx} of {run.total_slots} slots are committed"
            yield f"run {run.run_id} is not complete: {done}"
    if a.run_id == b.run_id:
        return
    one, other = a.resolved, b.resolved
    if _benchmark(one) != _benchmark(other):
        yield f"the benchmarks differ: {_named(_benchmark(one))} and {_named(_benchmark(other))}"
    if _grader(one) != _grader(other):
        yield "the graders differ, in command or files: verdicts may not mean the same"
    images = [ref for ref in a.images if ref in b.images and a.images[ref] != b.images[ref]]
    if images:
        yield f"the image {', '.join(sorted(images))} was not the same one in both runs"


def _benchmark(resolved: dict[str, Any]) -> dict[str, Any]:
    found = resolved.get("benchmark") or {}
    return {key: found[key] for key in _BENCHMARK if found.get(key)}


def _named(benchmark: dict[str, Any]) -> str:
    return " ".join(map(str, benchmark.values())) or "none"


def _grader(resolved: dict[str, Any]) -> list[Any]:
    files = (resolved.get("files") or {}).get("grader") or []
    return [resolved.get("grader"), sorted((f["name"], f["sha256"]) for f in files)]
