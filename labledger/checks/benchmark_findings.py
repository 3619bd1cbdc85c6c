"""Find problems of a benchmark's tasks in the trials of agents with a known verdict.

`task_findings` compares each agent's trials with each other, with its known verdict, with the time
limits, with trials without a network, and with the search for the solution. A finding means that
the task cannot be trusted; a remark does not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from labledger.benchmarks.benchmark_variations import (
    TaskContents,
    agent_limit_s,
    grader_limit_s,
    task_contents,
)
from labledger.benchmarks.formats import TranslatedBenchmark
from labledger.benchmarks.solution_search import Kind, Match, SearchResult, stands_in_task
from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import Reason
from labledger.records.task_coverage import TaskCoverage
from labledger.text.words import counted

SLOW_SHARE = 0.5
"""A grader or a solution that takes more than this share of its time limit is slow."""
_MAX_PLACES = 3
"""How many places of a solution are named."""
_MAX_MESSAGE = 200
_IDENTITY = frozenset({"id", "task_id", "instance_id"})
"""Fields of a task's text that always differ."""


class Finding(StrEnum):
    """A problem of a trial or of a task."""

    WRONG_VERDICT = "wrong_verdict"
    """A trial was graded, and has another verdict than its agent must get."""
    NOT_GRADED = "not_graded"
    """The grader failed or gave no reward: nothing is known about the agent."""
    NOT_RUN = "not_run"
    """The setup or the machine failed, so the agent did not run."""
    SOLUTION_FAILS = "solution_fails"
    """The reference solution does not pass the task."""
    PASSES_WITHOUT_WORK = "passes_without_work"
    """An agent that does nothing passes the task."""
    FLAKY = "flaky"
    """Trials of the same agent on the task end differently."""
    TESTS_TIME_OUT = "tests_time_out"
    """The tests exceed their time limit."""
    NO_SOLUTION = "no_solution"
    """The task has no reference solution, so it is unknown whether it can be passed."""
    SOLUTION_IN_IMAGE = "solution_in_image"
    """An agent can read the solution, or most of it, in a file."""
    SOLUTION_IN_GIT = "solution_in_git"
    """An agent can read the solution, or most of it, in the objects of a Git repository."""


class Remark(StrEnum):
    """A fact that a user of a task may want to know, although the task behaves as expected."""

    NEEDS_NETWORK = "needs_network"
    """The solution passes only with a network, which it or the tests use."""
    SLOW_GRADER = "slow_grader"
    """The tests take more than half of their time limit."""
    SLOW_SOLUTION = "slow_solution"
    """The solution takes more than half of the agent's time limit."""
    REWARD_VARIES = "reward_varies"
    """Trials of the same agent get different rewards, but the same verdict."""
    REWARD_WITHOUT_WORK = "reward_without_work"
    """An agent that does nothing gets a part of the reward."""
    SOLUTION_IN_TASK = "solution_in_task"
    """The task's own text has most of the solution."""
    TESTS_IN_IMAGE = "tests_in_image"
    """An agent can read the tests, or most of them, in a file."""
    OTHER_COMMITS = "other_commits"
    """A repository has commits outside the checked-out history."""
    SAME_TASK = "same_task"
    """Another task has the same text and the same tests."""
    LEFT_OUT = "left_out"
    """The task cannot be run, and was left out (`skip_refused`)."""
    NOT_SEARCHED = "not_searched"
    """The search for the solution did not end in its time limit."""


@dataclass(frozen=True, slots=True)
class CheckedTrial(JsonForm):
    """A trial of an agent that comes with a benchmark."""

    task_id: str
    agent: str
    expected: str
    """The expected verdict, `pass` or `fail`."""
    status: str
    reason: str | None
    verdict: str | None
    message: str | None = None
    reward: float | None = None
    """The primary metric of its score."""
    agent_ms: int | None = None
    grader_ms: int | None = None
    without_network: bool = False
    """Whether neither its agent nor its grader had a network."""

    _JSON = (
        *("task_id", "agent", "expected", "status", "reason", "verdict", "finding", "message"),
        *("reward", "agent_ms", "grader_ms", "without_network"),
    )

    @property
    def finding(self) -> Finding | None:
        """The problem of the trial; None if it ended as expected."""
        match self.status:
            case "completed" | "agent_error" | "agent_timeout":
                as_expected = self.verdict == self.expected
                return None if as_expected else Finding.WRONG_VERDICT
            case "grade_error":
                return Finding.NOT_GRADED
            case _:
                return Finding.NOT_RUN

    @property
    def ending(self) -> str:
        """The end of the trial in a few words: its verdict, or why it has none."""
        if self.finding in {Finding.NOT_GRADED, Finding.NOT_RUN}:
            return f"{self.status}: {self.reason}" if self.reason else self.status
        if self.status == "completed":
            return self.verdict or "no verdict"
        return f"{self.verdict or 'no verdict'} ({self.reason or self.status})"


@dataclass(frozen=True, slots=True)
class TaskFinding(JsonForm):
    """Something about a task: a finding or a remark."""

    task_id: str
    finding: Finding | Remark
    detail: str
    """The observation, in a sentence."""
    agent: str | None = None
    """The agent whose trials show it; None if no trial was needed."""

    _JSON = ("task_id", "finding", "agent", "detail")

    @property
    def is_remark(self) -> bool:
        """Whether the task may be trusted nevertheless."""
        return isinstance(self.finding, Remark)


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The facts about a task."""

    task_id: str
    trials: Mapping[str, Sequence[CheckedTrial]]
    """Trials of the unchanged benchmark, by agent."""
    offline: Sequence[CheckedTrial] = ()
    """Trials without a network, of agents that must pass."""
    search: CheckedTrial | None = None
    result: SearchResult | None = None
    has_solution: bool = True
    is_in_text: bool = False
    """Whether the task's own text has the solution."""
    same_as: str | None = None
    """An earlier task with the same text and tests."""
    limits_s: tuple[float, float] = (float("inf"), float("inf"))
    """The time limits of agent and grader, in seconds."""


@dataclass(frozen=True, slots=True)
class TrialSet:
    """All trials of a check."""

    trials: Sequence[CheckedTrial]
    offline: Sequence[CheckedTrial] = ()
    """Trials without a network."""
    searches: Mapping[str, tuple[CheckedTrial, SearchResult]] = field(default_factory=dict)
    """The searches, by task id."""


def task_findings(
    benchmark: TranslatedBenchmark, trial_set: TrialSet, contents: TaskContents | None = None
) -> tuple[TaskFinding, ...]:
    """Return the findings and then the remarks about each task that has a trial."""
    contents = contents or task_contents(benchmark)
    by_task: dict[str, dict[str, list[CheckedTrial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trial_set.trials:
        by_task[trial.task_id][trial.agent].append(trial)
    offline: dict[str, list[CheckedTrial]] = defaultdict(list)
    for trial in trial_set.offline:
        offline[trial.task_id].append(trial)
    rows = {row["id"]: row for row in benchmark.tasks}
    twins = _twins((rows[task_id] for task_id in by_task), contents)
    notes: list[TaskFinding] = []
    for task_id, trials in by_task.items():
        row = rows[task_id]
        search, result = trial_set.searches.get(task_id, (None, None))
        facts = TaskFacts(
            task_id,
            trials,
            offline[task_id],
            search,
            result,
            task_id not in contents.without_solution,
            stands_in_task(row, contents.solutions[task_id]),
            twins.get(task_id),
            (agent_limit_s(benchmark, row), grader_limit_s(benchmark, row)),
        )
        notes += findings_of(facts)
    return tuple(sorted(notes, key=lambda note: note.is_remark))


def left_out(coverage: TaskCoverage) -> Iterator[TaskFinding]:
    """Yield a remark for each task of the benchmark that was left out of a run."""
    for task in coverage.skipped:
        detail = f"it was left out: {_shortened(task.reason)}"
        yield TaskFinding(task.id, Remark.LEFT_OUT, detail)


def _twins(rows: Iterable[JsonObject], contents: TaskContents) -> dict[str, str]:
    """Return each task with the earlier task that has the same text and tests."""
    first: dict[tuple[bytes, frozenset[tuple[str, bytes]]], str] = {}
    twins = {}
    for row in rows:
        content = {key: value for key, value in row["task"].items() if key not in _IDENTITY}
        text = canonical_json.dump_bytes(content)
        earlier = first.setdefault((text, frozenset(contents.tests[row["id"]].items())), row["id"])
        if earlier != row["id"]:
            twins[row["id"]] = earlier
    return twins


def findings_of(facts: TaskFacts) -> Iterator[TaskFinding]:
    """Yield the findings and remarks about a task."""
    if not facts.has_solution:
        detail = "it has no reference solution: whether it can be passed is not known"
        yield TaskFinding(facts.task_id, Finding.NO_SOLUTION, detail)
    if facts.same_as is not None:
        detail = f"{facts.same_as} has the same text and the same tests"
        yield TaskFinding(facts.task_id, Remark.SAME_TASK, detail)
    if facts.is_in_text:
        detail = "the task's own text has at least half of the solution"
        yield TaskFinding(facts.task_id, Remark.SOLUTION_IN_TASK, detail)
    for agent, trials in facts.trials.items():
        is_solver = trials[0].expected == "pass"
        if is_solver and not facts.has_solution:
            continue
        yield from _of_verdicts(facts.task_id, agent, trials)
        yield from _of_rewards(facts.task_id, agent, trials)
    yield from _of_times(facts)
    yield from _of_network(facts)
    yield from _of_search(facts)


def _of_verdicts(task_id: str, agent: str, trials: Sequence[CheckedTrial]) -> Iterator[TaskFinding]:
    """Yield the findings in the verdicts of an agent's trials."""
    kinds = {trial.finding for trial in trials}
    endings = Counter(trial.ending for trial in trials)
    listed = ", ".join(f"{number} × {ending}" for ending, number in endings.items())
    seen = f"{agent}: {listed}" if len(trials) > 1 else f"{agent}: {trials[0].ending}"
    if kinds == {None}:
        return
    if len(kinds) > 1 or len({trial.verdict for trial in trials}) > 1:
        yield TaskFinding(task_id, Finding.FLAKY, seen, agent)
        return
    [kind] = kinds
    message = next((trial.message for trial in trials if trial.message), None)
    more = "" if message is None else f"; {_shortened(message)}"
    if kind is Finding.WRONG_VERDICT:
        kind = (
            Finding.SOLUTION_FAILS
            if trials[0].expected == "pass"
            else Finding.PASSES_WITHOUT_WORK
            if trials[0].verdict == "pass"
            else Finding.WRONG_VERDICT
        )
    elif {trial.reason for trial in trials} == {Reason.GRADER_TIMEOUT.value}:
        kind = Finding.TESTS_TIME_OUT
    assert kind is not None
    yield TaskFinding(task_id, kind, seen + more, agent)


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}…"


def _of_rewards(task_id: str, agent: str, trials: Sequence[CheckedTrial]) -> Iterator[TaskFinding]:
    graded = [trial for trial in trials if trial.finding is None and trial.reward is not None]
    rewards = sorted({trial.reward for trial in graded if trial.reward is not None})
    if len(rewards) > 1:
        detail = f"{agent}: rewards from {rewards[0]:g} to {rewards[-1]:g}"
        yield TaskFinding(task_id, Remark.REWARD_VARIES, detail, agent)
    if trials[0].expected == "fail" and rewards and rewards[-1] > 0:
        detail = f"{agent}, which does nothing, gets {rewards[-1]:g}"
        yield TaskFinding(task_id, Remark.REWARD_WITHOUT_WORK, detail, agent)


def _of_times(facts: TaskFacts) -> Iterator[TaskFinding]:
    agent_limit_s, grader_limit_s = facts.limits_s
    everyone = [trial for trials in facts.trials.values() for trial in trials]
    graded = [trial for trial in everyone if trial.finding is not Finding.NOT_GRADED]
    grader_ms = max((trial.grader_ms or 0 for trial in graded), default=0)
    if grader_ms > SLOW_SHARE * grader_limit_s * 1000:
        detail = f"the tests took up to {grader_ms / 1000:,.0f} s of {grader_limit_s:,.0f} s"
        yield TaskFinding(facts.task_id, Remark.SLOW_GRADER, detail)
    passed = [trial for trial in everyone if trial.expected == "pass" and trial.finding is None]
    slowest = max(passed, key=lambda trial: trial.agent_ms or 0, default=None)
    if slowest is not None and (slowest.agent_ms or 0) > SLOW_SHARE * agent_limit_s * 1000:
        took_s = (slowest.agent_ms or 0) / 1000
        detail = f"{slowest.agent} took up to {took_s:,.0f} s of {agent_limit_s:,.0f} s"
        if slowest.status == "agent_timeout":
            detail = f"{slowest.agent} was stopped at its time limit of {agent_limit_s:,.0f} s"
        yield TaskFinding(facts.task_id, Remark.SLOW_SOLUTION, detail, slowest.agent)


def _of_network(facts: TaskFacts) -> Iterator[TaskFinding]:
    for trial in facts.offline:
        with_network = facts.trials.get(trial.agent, ())
        passes = any(trial.verdict == "pass" for trial in with_network)
        if facts.has_solution and passes and trial.verdict != "pass":
            detail = f"{trial.agent} without a network: {trial.ending}"
            yield TaskFinding(facts.task_id, Remark.NEEDS_NETWORK, detail, trial.agent)


def _of_search(facts: TaskFacts) -> Iterator[TaskFinding]:
    search, result = facts.search, facts.result
    if search is None or result is None:
        return
    others = [trial for trials in facts.trials.values() for trial in trials]
    is_known = any(t.expected == "fail" and t.verdict == "pass" for t in others)
    if search.verdict == "pass" and not is_known:
        detail = f"{search.agent}, which changes nothing, passes"
        yield TaskFinding(facts.task_id, Finding.PASSES_WITHOUT_WORK, detail, search.agent)
    for kind, in_git, finding in (
        (Kind.SOLUTION, False, Finding.SOLUTION_IN_IMAGE),
        (Kind.SOLUTION, True, Finding.SOLUTION_IN_GIT),
        (Kind.TESTS, False, Remark.TESTS_IN_IMAGE),
    ):
        matches = [m for m in result.matches if m.kind is kind and m.in_git is in_git]
        if matches:
            yield TaskFinding(facts.task_id, finding, _places(matches), search.agent)
    if result.other_commits is not None:
        yield TaskFinding(facts.task_id, Remark.OTHER_COMMITS, result.other_commits, search.agent)
    if not result.finished and search.finding is not Finding.NOT_RUN:
        detail = f"the search for the solution did not end ({search.ending})"
        yield TaskFinding(facts.task_id, Remark.NOT_SEARCHED, detail, search.agent)


def _places(matches: Sequence[Match]) -> str:
    named = ", ".join(match.where for match in matches[:_MAX_PLACES])
    more = len(matches) - _MAX_PLACES
    return named if more <= 0 else f"{named} and {counted(more, 'more place')}"
