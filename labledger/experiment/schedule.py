"""The order of an experiment's slots: pure, lazy, and the same on every Python version."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labledger.records import Slot

Cell = tuple[int, int, int]
"""Indices of a variant, a task and a replication."""


def slots(
    design: Mapping[str, Any], variant_ids: Sequence[str], task_ids: Sequence[str]
) -> Iterator[Slot]:
    """Every cell of variants × tasks × replications exactly once, numbered from 0.

    `design` is that of a resolved experiment. Its `schedule` is one of

    - ``paired_interleaved``: by replication, then task, then variant, so that the variants of a
      task run side by side, in authored order, and an interrupted run compares like with like;
    - ``variant_sequential``: all of one variant, by replication and then task, before the next;
    - ``randomized``: a permutation of all cells drawn from `random_seed`.

    `shuffle_tasks` first permutes the tasks, once for all variants and replications, from
    `random_seed`. Memory is 4 bytes a task (a slot, when randomized).
    """
    tasks = len(task_ids)
    order = permutation(tasks, design["random_seed"], "tasks") if design["shuffle_tasks"] else None
    cells = _cells(design, len(variant_ids), tasks)
    for index, (variant, task, repl_idx) in enumerate(cells):
        task_id = task_ids[task if order is None else order[task]]
        yield Slot(index, variant_ids[variant], task_id, repl_idx)


def _cells(design: Mapping[str, Any], variants: int, tasks: int) -> Iterator[Cell]:
    replications: int = design["replications"]
    match design["schedule"]:
        case "variant_sequential":
            for variant in range(variants):
                for repl in range(replications):
                    for task in range(tasks):
                        yield variant, task, repl
        case "randomized":
            total = variants * tasks * replications
            for cell in permutation(total, design["random_seed"], "slots"):
                rest, variant = divmod(cell, variants)
                repl, task = divmod(rest, tasks)
                yield variant, task, repl
        case _:
            for repl in range(replications):
                for task in range(tasks):
                    for variant in range(variants):
                        yield variant, task, repl


def permutation(size: int, seed: int, purpose: str) -> Sequence[int]:
    """A permutation of range(size) that depends on nothing but its arguments.

    Fisher–Yates, drawing from `random.Random.random`, the one method whose sequence Python
    promises to keep; the seed is hashed, since `Random` takes -1 and 1 for the same.
    """
    hashed = hashlib.sha256(f"labledger {purpose} {seed}".encode()).digest()
    draw = random.Random(int.from_bytes(hashed, "big")).random  # noqa: S311
    order = array("I", range(size))
    for last in range(size - 1, 0, -1):
        chosen = int(draw() * (last + 1))
        order[last], order[chosen] = order[chosen], order[last]
    return order
