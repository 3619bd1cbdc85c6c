"""`check_benchmark`: whether the tasks of a benchmark behave as their agents promise.

Agents that come with a benchmark say what they must get on every task, such as `oracle` a pass and
`nop` a fail. One run has all of them as variants. What a trial got is compared with that, and
trials that could not be graded or did not run are told apart from wrong verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from labledger.errors import InvalidInput, Parameter, Problem
from labledger.records.json_codec import JsonForm

if TYPE_CHECKING:
    from labledger.runner.run_options import RunOptions, RunOutcome

_TRIALS_SQL = (
    "SELECT task_id, variant_id, status, reason, verdict FROM trials "
    "WHERE run_id = :run_id ORDER BY schedule_idx"
)


class Finding(StrEnum):
    """What is wrong with a trial."""

    WRONG_VERDICT = "wrong_verdict"
    """It was graded, and has another verdict than its agent must get."""
    NOT_GRADED = "not_graded"
    """Its grader failed or gave no reward: nothing is known about the agent."""
    NOT_RUN = "not_run"
    """Its setup failed, or the machine failed: the agent did not run."""


@dataclass(frozen=True, slots=True)
class CheckedTrial(JsonForm):
    """A trial of an agent that comes with a benchmark."""

    task_id: str
    agent: str
    expected: str
    """The verdict that it must have, `pass` or `fail`."""
    status: str
    reason: str | None
    verdict: str | None

    _JSON = ("task_id", "agent", "expected", "status", "reason", "verdict", "finding")

    @property
    def finding(self) -> Finding | None:
        """What is wrong with it; None if it is as expected."""
        match self.status:
            case "completed" | "agent_error" | "agent_timeout":
                as_expected = self.verdict == self.expected
                return None if as_expected else Finding.WRONG_VERDICT
            case "grade_error":
                return Finding.NOT_GRADED
            case _:
                return Finding.NOT_RUN


@dataclass(frozen=True, slots=True)
class BenchmarkCheck:
    """The result of checking a benchmark."""

    outcome: RunOutcome
    """Of the run."""
    trials: tuple[CheckedTrial, ...]
    """Every committed trial, in schedule order."""

    @property
    def findings(self) -> tuple[CheckedTrial, ...]:
        """The trials that are not as expected."""
        return tuple(trial for trial in self.trials if trial.finding is not None)


def check_benchmark(benchmark: str, options: RunOptions | None = None) -> BenchmarkCheck:
    """Run the agents with a known verdict that come with a benchmark, and compare.

    Args:
        benchmark: The benchmark as `FORMAT:LOCATION`, such as `harbor:./terminal-bench-2`.
        options: As for `run`. `agents` chooses among the agents with a known verdict.

    Returns:
        Every trial with what is wrong with it, if anything.

    Raises:
        InvalidInput: It is no benchmark, a chosen agent has no known verdict, or as for `run`.

    Example:
        >>> import labledger
        >>> checked = labledger.check_benchmark("humaneval:./HumanEval.jsonl")
        >>> [(trial.task_id, trial.finding) for trial in checked.findings]
        []
    """
    from labledger.api.experiment_sources import given_benchmark, translate_runnable
    from labledger.api.ledger import open_ledger
    from labledger.api.runs import run_source
    from labledger.runner.run_options import RunOptions

    options = options or RunOptions()
    known = given_benchmark(benchmark, options.agents)
    if known is None:
        problem = Problem("benchmark", f"found {benchmark!r}; expected FORMAT:LOCATION")
        raise InvalidInput("the benchmark", [problem])
    expected = {a.name: a.expects for a in known.agents if a.expects is not None}
    agents = options.agents or tuple(expected)
    _require_known_verdicts(known.name, agents, expected)
    outcome = run_source(*translate_runnable(known, replace(options, agents=agents)))
    # The run folder is `LAB/runs/RUN`.
    with open_ledger(lab_dir=outcome.folder.parents[1]) as ledger:
        rows = list(ledger.rows(_TRIALS_SQL, {"run_id": outcome.run_id})[1])
    trials = tuple(
        CheckedTrial(task_id, agent, expected[agent], status, reason, verdict)
        for task_id, agent, status, reason, verdict in rows
    )
    return BenchmarkCheck(outcome, trials)


def _require_known_verdicts(
    name: str, agents: tuple[str, ...], expected: Mapping[str, str]
) -> None:
    known = ", ".join(expected)
    problems = [
        Problem(
            Parameter("agents"),
            f"{agent!r} of {name} has no known verdict; agents that have: {known}",
        )
        for agent in agents
        if agent not in expected
    ]
    if not agents:
        problems = [Problem(name, "no agent with a known verdict comes with it")]
    if problems:
        raise InvalidInput("the benchmark cannot be checked", problems)
