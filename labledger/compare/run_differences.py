"""What, beside the variants, could be why two sides differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labledger.ledger.database.model import Graded
from labledger.records.outcomes import RunStatus

_BENCHMARK = ("adapter_id", "name", "version", "split")


def warnings(a: Graded, b: Graded) -> tuple[str, ...]:
    """A sentence for each thing that a reader of the comparison should know of its runs."""
    return tuple(_warnings(a, b))


def grader_name(digest: str | None) -> str:
    """A grader for a person: the beginning of its digest."""
    return "a grader that no score names" if digest is None else f"grader {digest[:12]}"


def _warnings(a: Graded, b: Graded) -> Iterator[str]:
    same = a.run.run_no == b.run.run_no
    for graded in (a,) if same else (a, b):
        run = graded.run
        if run.status is not RunStatus.COMPLETED:
            done = f"{run.next_schedule_idx} of {run.total_slots} slots are committed"
            yield f"run {graded.name} is not complete: {done}"
    if same:
        return
    one, other = a.run.resolved, b.run.resolved
    if _benchmark(one) != _benchmark(other):
        yield f"the benchmarks differ: {_named(_benchmark(one))} and {_named(_benchmark(other))}"
    if _differ(a, b):
        yield (
            f"the graders differ, in command or files: {_command(one)} ({_whose(a)}) and "
            f"{_command(other)} ({_whose(b)}); verdicts may not mean the same"
        )
    elif a.root_id == b.root_id:
        yield "both gradings are by the same grader: what it judges differently is its own doing"
    here, there = a.run.images, b.run.images
    images = [ref for ref in here if ref in there and here[ref] != there[ref]]
    if images:
        yield f"the image {', '.join(sorted(images))} was not the same one in both runs"


def _differ(a: Graded, b: Graded) -> bool:
    """Whether the graders differ: by their digests, or where one is not known, as written."""
    digests = a.grading.grader_digest, b.grading.grader_digest
    if None in digests:
        return _grader(a.run.resolved) != _grader(b.run.resolved)
    return digests[0] != digests[1]


def _benchmark(resolved: dict[str, Any]) -> dict[str, Any]:
    found = resolved.get("benchmark") or {}
    return {key: found[key] for key in _BENCHMARK if found.get(key)}


def _named(benchmark: dict[str, Any]) -> str:
    return " ".join(map(str, benchmark.values())) or "none"


def _grader(resolved: dict[str, Any]) -> list[Any]:
    files = (resolved.get("files") or {}).get("grader") or []
    return [resolved.get("grader"), sorted((f["name"], f["sha256"]) for f in files)]


def _command(resolved: dict[str, Any]) -> str:
    command = (resolved.get("grader") or {}).get("command") or []
    return " ".join(map(str, command)) or "none"


def _whose(graded: Graded) -> str:
    digest = graded.grading.grader_digest
    return graded.name if digest is None else f"{graded.name}, {grader_name(digest)}"
