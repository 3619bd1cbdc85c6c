"""The format `swebench`: rows of a SWE-bench data set for version 5 of the `swebench` package.

Beside the agents `gold` and `empty` it has those of predictions: `predictions:FILE` grades what a
model has answered elsewhere, without running an agent.
"""

from __future__ import annotations

from dataclasses import dataclass

from labledger.benchmarks.protocol import Benchmark
from labledger.benchmarks.swebench.dataset_rows import read_dataset
from labledger.benchmarks.swebench.experiment_parts import (
    AGENTS,
    swebench_benchmark,
    with_predictions,
)
from labledger.benchmarks.swebench.predictions import read_predictions


@dataclass(frozen=True, slots=True)
class SwebenchFormat:
    """Reads `swebench:FILE`."""

    name: str = "swebench"
    agents: tuple[str, ...] = AGENTS
    agent_kinds: tuple[str, ...] = ("predictions",)

    def read(self, location: str) -> Benchmark:
        """Return the benchmark of a file.

        Raises `InvalidInput` with every problem, and `ExtraMissing`.
        """
        return swebench_benchmark(read_dataset(location))

    def add_agent(self, benchmark: Benchmark, kind: str, argument: str) -> Benchmark:  # noqa: ARG002
        """Return a benchmark with the agent of a file of predictions, its last.

        Raises `InvalidInput`.
        """
        known = [task["id"] for task in benchmark.tasks]
        known += [task.task_id for task in benchmark.refused]
        return with_predictions(benchmark, read_predictions(argument, known))


SWEBENCH = SwebenchFormat()
