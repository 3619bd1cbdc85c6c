"""Queries of the views of a very large ledger, beside DuckDB over its mirrors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from bench import large_ledger
from bench.report import Row, paired_ratio, say
from labledger import Ledger, open_ledger
from labledger.export.mirrors import PATHS
from labledger.ledger.query import query
from labledger.records.pass_rate import PASSED_SQL

GOAL_S = 1.0
ROUNDS = 5

RUN, EXPERIMENT, TASK = "run-0001", "experiment-000", "task-000042"

_TRIALS = """read_json('{folder}/{runs}/facts/trials.jsonl', format='newline_delimited', columns={{
    ids: 'STRUCT(run_id VARCHAR, variant_id VARCHAR, task_id VARCHAR, repl_idx BIGINT)',
    status: 'VARCHAR', verdict: 'VARCHAR', phases: 'STRUCT(agent STRUCT(exit_status BIGINT))',
    duration_ms: 'BIGINT'}})"""
_METRICS = """read_json('{folder}/{runs}/facts/metrics_long.jsonl', format='newline_delimited',
    columns={{ids: 'STRUCT(run_id VARCHAR)', metric_id: 'VARCHAR', value: 'DOUBLE'}})"""
_PASSED = PASSED_SQL.format(
    status="status", verdict="verdict", agent_exit_status="phases.agent.exit_status"
)
_RATE = f"count({_PASSED}), avg(({_PASSED})::INT)"


@dataclass(frozen=True)
class Question:
    what: str
    view: str
    """The text after `SELECT * FROM`."""
    duck: str = ""
    """The same query over the mirrors, which hold neither schedules nor experiments."""
    runs: str = "*"
    """The runs whose mirrors are needed, as a glob."""


QUESTIONS = (
    Question("trial_facts of a run", f"trial_facts WHERE run_id = '{RUN}'"),
    Question("trial_facts, the first 20", "trial_facts LIMIT 20"),
    Question(
        "leaderboard of a run",
        f"leaderboard WHERE run_id = '{RUN}'",
        f"SELECT ids.variant_id, {_RATE} FROM {_TRIALS} GROUP BY 1",
        RUN,
    ),
    Question(
        "leaderboard, all runs",
        "leaderboard",
        f"SELECT ids.run_id, ids.variant_id, {_RATE} FROM {_TRIALS} GROUP BY 1, 2",
    ),
    Question(
        "paired_outcomes of a run, regressions",
        f"paired_outcomes WHERE run_id = '{RUN}' AND outcome = 'regression'",
        f"""WITH counted AS (SELECT ids, {_PASSED} AS passed FROM {_TRIALS})
        SELECT a.ids, b.ids FROM counted a JOIN counted b
        ON a.ids.task_id = b.ids.task_id AND a.ids.repl_idx = b.ids.repl_idx
        WHERE a.ids.variant_id = 'base' AND b.ids.variant_id = 'treat'
        AND a.passed::INT = 1 AND b.passed::INT = 0""",
        RUN,
    ),
    Question("win_loss_tie of a run", f"win_loss_tie WHERE run_id = '{RUN}'"),
    Question("win_loss_tie, all runs", "win_loss_tie"),
    Question(
        "task_difficulty, all tasks and runs",
        "task_difficulty",
        f"SELECT ids.task_id, count(DISTINCT ids.run_id), {_RATE} FROM {_TRIALS} GROUP BY 1",
    ),
    Question(
        "task_history of a task, all runs",
        f"task_history WHERE task_id = '{TASK}'",
        f"SELECT * FROM {_TRIALS} WHERE ids.task_id = '{TASK}' ORDER BY ids.run_id",
    ),
    Question(
        "flaky_tasks of an experiment",
        f"flaky_tasks WHERE experiment_id = '{EXPERIMENT}'",
        f"""WITH counted AS (SELECT ids, {_PASSED} AS passed FROM {_TRIALS})
        SELECT ids.variant_id, ids.task_id FROM counted
        GROUP BY 1, 2 HAVING count(DISTINCT passed::INT) > 1""",
        "run-000?",
    ),
    Question("flaky_tasks, all", "flaky_tasks"),
    Question(
        "run_history of an experiment",
        f"run_history WHERE experiment_id = '{EXPERIMENT}'",
        f"""SELECT * FROM (SELECT ids.run_id, sum(duration_ms), {_RATE} FROM {_TRIALS} GROUP BY 1)
        JOIN (SELECT ids.run_id, sum(value) FROM {_METRICS} WHERE metric_id = 'cost_usd' GROUP BY 1)
        USING (run_id)""",
        "run-000?",
    ),
    Question("run_history, all runs", "run_history"),
    Question("coverage of a run", f"coverage WHERE run_id = '{RUN}'"),
    Question(
        "coverage, all runs",
        "coverage",
        f"SELECT ids.run_id, ids.variant_id, status, count(*) FROM {_TRIALS} GROUP BY 1, 2, 3",
    ),
)


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    trials = 100_000 if quick else 1_000_000
    lab = folder / "views"
    ledger = lab / "ledger.sqlite"
    say(f"views: a ledger of {trials:,} trials")
    runs = large_ledger.write(ledger, trials)
    say("views: its mirrors")
    with open_ledger(ledger) as opened:
        for run_id in runs:
            _mirror(opened, lab, run_id, "trials")
        for run_id in runs[: large_ledger.RUNS_OF_AN_EXPERIMENT]:
            _mirror(opened, lab, run_id, "metrics")
    say(f"views: {len(QUESTIONS)} questions, {ROUNDS} rounds")
    for question in QUESTIONS:
        yield _row(ledger, lab, question)


def _mirror(ledger: Ledger, lab: Path, run_id: str, kind: str) -> None:
    ledger.export(run_id, kind, lab / "runs" / run_id / PATHS[kind])


def _row(ledger: Path, lab: Path, question: Question) -> Row:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_seconds(lambda: list(query(ledger, f"SELECT * FROM {question.view}")[1])))
        if question.duck:
            theirs.append(_seconds(lambda: _ask_duckdb(lab, question)))
    measured = statistics.median(ours)
    baseline = f"{statistics.median(theirs):.3f} s DuckDB, JSONL" if theirs else ""
    ratio = f"{paired_ratio(ours, theirs):.3f}" if theirs else ""
    return Row(
        question.what, f"{measured:.3f} s", baseline, ratio, f"< {GOAL_S:.0f} s", measured < GOAL_S
    )


def _ask_duckdb(lab: Path, question: Question) -> list[Any]:
    with duckdb.connect() as connection:
        sql = question.duck.format(folder=lab / "runs", runs=question.runs)
        return connection.execute(sql).fetchall()


def _seconds(ask: Callable[[], object]) -> float:
    begun = time.perf_counter()
    assert ask(), "no rows"
    return time.perf_counter() - begun
