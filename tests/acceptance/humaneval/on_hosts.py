"""HumanEval on a cluster of three hosts whose parts are killed, compared with an undisturbed run.

`scripts/humaneval --cluster` runs this. It kills as `scripts/torture --cluster` does, which counts
every container start of all engines and everything that stays on the hosts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_torture import WHOLE, torment
from host_cluster.cluster import Cluster, Plan, cluster_in
from host_cluster.projects import ClusterProject

from humaneval.build import VARIANTS, Problem, build, expected
from humaneval.drive import Drive

IMAGE = "labledger/python:3"
SLOTS = 2
"""The slots of each host."""
BEFORE_NEXT_S = (0.5, 15.0)


class HumanEvalProject(ClusterProject):
    """HumanEval as an experiment whose commands run in the network of a cluster."""

    def __init__(
        self, cluster: Cluster, folder: Path, problems: list[Problem], replications: int
    ) -> None:
        super().__init__(cluster, folder, {})
        build(problems, folder, replications)

    def rows(self, run_id: str) -> dict[str, list[Any]]:
        """Return every committed record by kind, without times of agents."""
        return {kind: without_times(records) for kind, records in super().rows(run_id).items()}


def without_times(value: Any) -> Any:
    """Return a record without metrics that are times."""
    if isinstance(value, dict):
        other_fields = {key: part for key, part in value.items() if key != "agent_ms"}
        return {key: without_times(part) for key, part in other_fields.items()}
    if isinstance(value, list):
        return [without_times(part) for part in value if not is_time(part)]
    return value


def is_time(value: Any) -> bool:
    return isinstance(value, dict) and value.get("metric_id") == "agent_ms"


@dataclass(frozen=True)
class Proof:
    """Shows that deaths of every part of a cluster do not change the results of HumanEval."""

    problems: list[Problem]
    replications: int
    deaths: int
    """The minimum number of deaths."""
    seed: int
    """The seed of the deaths."""

    def holds(self, folder: Path, say: Callable[[str], Any]) -> bool:
        """Run the problems here and on killed hosts; return whether the results are equal."""
        shutil.rmtree(folder, ignore_errors=True)
        trials = len(self.problems) * len(VARIANTS) * self.replications
        say(f"{len(self.problems)} problems, {trials} trials, seed {self.seed}, in {folder}")
        plan = Plan(slots=SLOTS, images=(IMAGE,)).impatient()
        with cluster_in(folder / "cluster", plan) as cluster:
            project = HumanEvalProject(
                cluster, folder / "project", self.problems, self.replications
            )
            toll = torment(project, self.deaths, self.seed, say, before_next_s=BEFORE_NEXT_S)
        for complaint in toll.complaints:
            say(complaint)
        expected_verdicts = expected(self.problems, replications=self.replications)
        wrong = [
            run_id
            for run_id in (WHOLE, *(f"run-{number}" for number in range(toll.runs)))
            if Drive(project.experiment, project.lab, run_id).verdicts() != expected_verdicts
        ]
        for run_id in wrong:
            say(f"error: {run_id} has other verdicts than {expected_verdicts}")
        return toll.is_nothing and not wrong
