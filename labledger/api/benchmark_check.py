"""`check_benchmark`: checks the tasks of a benchmark with agents whose verdict is known.

The first run has all these agents, such as `oracle` (pass) and `nop` (fail), several times. The
second run has the agents that must pass, without a network, and an agent that searches for the
solution. `checks/benchmark_findings.py` judges the trials of both runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from labledger.api.experiment_sources import given_benchmark, translate_runnable
from labledger.api.ledger import Ledger, open_ledger
from labledger.api.runs import run_source
from labledger.benchmarks import benchmark_variations as variations
from labledger.benchmarks.benchmark_variations import (
    TaskContents,
    agent_limit_s,
    grader_limit_s,
    passing_agents,
    task_contents,
    with_repeats,
)
from labledger.benchmarks.formats import TranslatedBenchmark
from labledger.benchmarks.solution_search import (
    AGENT,
    LIMIT_S,
    SearchResult,
    read_matches,
    with_search,
)
from labledger.benchmarks.task_selection import require_known_tasks, require_no_refused, selects
from labledger.checks.benchmark_findings import (
    CheckedTrial,
    TaskFinding,
    TrialSet,
    left_out,
    task_findings,
)
from labledger.errors import InvalidInput, LabLedgerError, Parameter, Problem
from labledger.records.identity import MAX_RUN_ID
from labledger.runner.run_options import RunOptions
from labledger.runner.run_outcome import RunOutcome

_UNLIMITED_S = 7 * 86_400
"""Longer time limits are treated as no limit when estimating durations."""
_OFFLINE = "-offline"
"""The suffix of the second run's id."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The trials that a check will run."""

    tasks: int
    agents: tuple[str, ...]
    """The agents of the first run."""
    repeats: int
    """How often each of them runs on each task."""
    agents_offline: tuple[str, ...]
    """The agents of the second run, once on each task; empty if there is no second run."""
    at_once: int
    """How many trials run at once."""
    at_most_s: float | None
    """The seconds that both runs take if each trial uses its whole time limits; None if the limit
    of a trial is longer than a week."""

    @property
    def trials(self) -> int:
        """How many trials both runs have."""
        return self.tasks * (len(self.agents) * self.repeats + len(self.agents_offline))


@dataclass(frozen=True, slots=True)
class BenchmarkCheck:
    """The result of checking a benchmark."""

    outcome: RunOutcome
    """The outcome of the first run."""
    trials: tuple[CheckedTrial, ...]
    """The committed trials of both runs in schedule order, without the trials of the search."""
    tasks: tuple[TaskFinding, ...] = ()
    """The findings about tasks, and then the remarks."""
    outcome_offline: RunOutcome | None = None
    """The outcome of the second run; None if there was none."""
    problem: str | None = None
    """Why the check is not complete: the second run could not start or is not complete."""

    @property
    def findings(self) -> tuple[TaskFinding, ...]:
        """The reasons why tasks cannot be trusted."""
        return tuple(task for task in self.tasks if not task.is_remark)

    @property
    def remarks(self) -> tuple[TaskFinding, ...]:
        """Other facts that may matter to users of the tasks."""
        return tuple(task for task in self.tasks if task.is_remark)


def check_benchmark(
    benchmark: str,
    options: RunOptions | None = None,
    *,
    repeats: int = 3,
    offline: bool = True,
    search: bool = True,
    on_plan: Callable[[CheckPlan], object] | None = None,
) -> BenchmarkCheck:
    """Run the agents with a known verdict that come with a benchmark, and judge each task.

    Args:
        benchmark: The benchmark as `FORMAT:LOCATION`, such as `harbor:./terminal-bench-2`.
        options: As for `run`. `agents` chooses among the agents with a known verdict.
        repeats: How often each agent runs on each task.
        offline: Also run each agent that must pass once without a network, and its grader too.
        search: Also search readable files and Git objects for the solution of each task.
        on_plan: Called with the plan before anything runs.

    Returns:
        The trials, and the findings and remarks about each task.

    Raises:
        InvalidInput: `benchmark` is not a benchmark, a chosen agent has no known verdict, or as for
            `run`.

    Example:
        >>> import labledger
        >>> checked = labledger.check_benchmark("humaneval:./HumanEval.jsonl")
        >>> [(finding.task_id, finding.finding) for finding in checked.findings]
        []
    """

    options = options or RunOptions()
    _require_usable(options, repeats)
    translated = _checkable(benchmark, options)
    agents = options.source.agents or tuple(
        agent.name for agent in translated.agents if agent.expects is not None
    )
    contents = task_contents(translated, options.selection.tasks)
    second = _second_run(translated, contents, agents, offline=offline, search=search)
    if on_plan is not None:
        require_known_tasks(translated, options.selection.tasks)
        if not options.source.skip_refused:
            require_no_refused(translated, options.selection.tasks)
        on_plan(_plan(translated, options, agents, repeats, () if second is None else second[1]))
    first = _run(with_repeats(translated, repeats), _with_agents(options, agents))
    rest: _CheckedRun | None = None
    problem: str | None = None
    if second is not None and first.outcome.complete:
        run_id = f"{first.outcome.run_id}{_OFFLINE}"
        chosen = replace(_with_agents(options, second[1]), run_id=run_id)
        try:
            rest = _run(second[0], chosen, is_offline=True)
        except LabLedgerError as error:
            # Keep the results of the first run.
            problem = f"the second run could not begin: {error}"
        else:
            problem = None if rest.outcome.complete else f"the run {run_id} is not complete"
    trial_set = TrialSet(first.trials, *(() if rest is None else rest.parts()))
    return BenchmarkCheck(
        first.outcome,
        (*trial_set.trials, *trial_set.offline),
        (*task_findings(translated, trial_set, contents), *left_out(first.outcome.coverage)),
        None if rest is None else rest.outcome,
        problem,
    )


def _with_agents(options: RunOptions, agents: tuple[str, ...]) -> RunOptions:
    return replace(options, source=replace(options.source, agents=agents))


def _require_usable(options: RunOptions, repeats: int) -> None:
    """Raise `InvalidInput` for options with which one of the runs could not start."""
    problems = []
    if repeats < 1:
        problems.append(Problem(Parameter("repeats"), f"found {repeats}; expected 1 or more"))
    longest = MAX_RUN_ID - len(_OFFLINE)
    if options.run_id is not None and len(options.run_id) > longest:
        message = f"has {len(options.run_id)} characters; a check's may have {longest}"
        problems.append(Problem(Parameter("run_id"), message))
    if problems:
        raise InvalidInput("the options are not valid", problems)


@dataclass(frozen=True, slots=True)
class _CheckedRun:
    """One of the two runs of a check."""

    outcome: RunOutcome
    trials: tuple[CheckedTrial, ...]
    searched: Mapping[str, SearchResult]
    """The result of the search, by task id."""

    def parts(self) -> tuple[list[CheckedTrial], dict[str, tuple[CheckedTrial, SearchResult]]]:
        """Return the trials of other agents, and each search with its result, by task id."""
        others = [trial for trial in self.trials if trial.agent != AGENT]
        searches = {
            trial.task_id: (trial, self.searched[trial.task_id])
            for trial in self.trials
            if trial.agent == AGENT
        }
        return others, searches


def _checkable(benchmark: str, options: RunOptions) -> TranslatedBenchmark:
    """Return the benchmark if all chosen agents have a known verdict. Raises `InvalidInput`."""
    translated = given_benchmark(benchmark, options)
    if translated is None:
        problem = Problem("benchmark", f"found {benchmark!r}; expected FORMAT:LOCATION")
        raise InvalidInput("the benchmark", [problem])
    expected = {agent.name for agent in translated.agents if agent.expects is not None}
    names = ", ".join(agent.name for agent in translated.agents if agent.name in expected)
    problems = [
        Problem(
            Parameter("agents"),
            f"{agent!r} of {translated.name} has no known verdict; agents that have: {names}",
        )
        for agent in options.source.agents
        if agent not in expected
    ]
    if not expected:
        problems = [Problem(translated.name, "no agent with a known verdict comes with it")]
    if problems:
        raise InvalidInput("the benchmark cannot be checked", problems)
    return translated


def _second_run(
    known: TranslatedBenchmark,
    contents: TaskContents,
    agents: Sequence[str],
    *,
    offline: bool,
    search: bool,
) -> tuple[TranslatedBenchmark, tuple[str, ...]] | None:
    """Return the benchmark and the agents of the second run; None if there is nothing to run."""

    chosen: tuple[str, ...] = ()
    if offline and variations.uses_network(known):
        chosen = tuple(name for name in variations.passing_agents(known) if name in agents)
    changed = variations.with_repeats(variations.without_network(known), 1)
    if search and any(contents.solutions.values()):
        changed = with_search(changed, contents)
        chosen = (*chosen, AGENT)
    return (changed, chosen) if chosen else None


def _plan(
    known: TranslatedBenchmark,
    options: RunOptions,
    agents: Sequence[str],
    repeats: int,
    agents_offline: Sequence[str],
) -> CheckPlan:
    chosen = options.selection
    rows = [row for row in known.tasks if selects(chosen.tasks, row["id"])][: chosen.limit]
    solvers = set(passing_agents(known))
    runs = [name for name in agents for _ in range(repeats)] + list(agents_offline)
    total = 0.0
    for row in rows:
        # An agent that must fail does nothing, and takes no time.
        agent_s = agent_limit_s(known, row)
        limits_s = [agent_s if a in solvers else LIMIT_S if a == AGENT else 0 for a in runs]
        total += sum(limits_s) + len(runs) * grader_limit_s(known, row)
        if agent_s > _UNLIMITED_S:
            total = float("inf")
    design = known.defaults.get("design", {})
    at_once = options.max_concurrency or design.get("max_concurrency", 1)
    at_most_s = None if total == float("inf") else total / at_once
    return CheckPlan(len(rows), tuple(agents), repeats, tuple(agents_offline), at_once, at_most_s)


_TRIALS_SQL = (
    "SELECT schedule_idx, task_id, variant_id, status, reason, verdict, message, "
    "primary_metric_value, agent_duration_ms, grader_duration_ms FROM trials "
    "WHERE run_id = :run_id ORDER BY schedule_idx"
)
_OUTPUT = "agent_stdout"


def _run(
    benchmark: TranslatedBenchmark, options: RunOptions, *, is_offline: bool = False
) -> _CheckedRun:
    """Run the agents of `options` on every selected task."""

    expected = {agent.name: agent.expects or "fail" for agent in benchmark.agents}
    outcome = run_source(*translate_runnable(benchmark, options))
    # The run folder is `LAB/runs/RUN`.
    with open_ledger(lab_dir=outcome.folder.parents[1]) as ledger:
        rows = list(ledger.rows(_TRIALS_SQL, {"run_id": outcome.run_id})[1])
        results = dict(_search_results(ledger, outcome.run_id, rows))
    trials = tuple(
        replace(CheckedTrial(task_id, agent, expected[agent], *facts), without_network=is_offline)
        for _, task_id, agent, *facts in rows
    )
    return _CheckedRun(outcome, trials, results)


def _search_results(
    ledger: Ledger, run_id: str, rows: Sequence[Sequence[object]]
) -> Iterator[tuple[str, SearchResult]]:
    for schedule_idx, task_id, agent, *_ in rows:
        if agent == AGENT:
            evidence = ledger.slot(run_id, int(str(schedule_idx)))["evidence"]
            reference = evidence[-1]["evidence"].get(_OUTPUT) if evidence else None
            output = b"" if reference is None else ledger.artifact(reference)
            yield str(task_id), read_matches(output)
