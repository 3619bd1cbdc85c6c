"""Wall time per trial of a real run, beside a plain loop of `docker run --rm` of its commands."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.report import Row, paired_ratio, say
from bench.synthetic import IMAGE, write_experiment
from labledger.api import RunOptions, run

GOAL = 1.05
_TRIALS = {1: 12, 2: 24, 8: 48}
"""How many trials a round runs, by concurrency."""

_COMMANDS = "python3 /agentlab/deps/agent.py && python3 /agentlab/deps/grader.py"
_ENVIRONMENT = {
    "AGENTLAB_RESULT_PATH": "/agentlab/out/result.json",
    "AGENTLAB_BENCHMARK_PREDICTION_PATH": "/agentlab/out/benchmark_prediction.json",
    "AGENTLAB_BENCHMARK_SCORE_PATH": "/agentlab/out/benchmark_score.json",
}


@dataclass(frozen=True)
class Timed:
    """Seconds of one whole run."""

    before: float
    """Checks, freezing and set-up: from the call to where the coordinator begins."""
    trials: float
    """From there to the end: every trial graded, committed, mirrored and cleaned up."""


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    befores: list[float] = []
    for concurrency, full in _TRIALS.items():
        trials, rounds = (full // 2, 2) if quick else (full, 5)
        say(f"trials: {rounds} rounds of {trials} at concurrency {concurrency}, both ways")
        name = f"trials-{concurrency}"
        experiment = write_experiment(folder / name, tasks=trials, concurrency=concurrency)
        ours, plain = [], []
        for number in range(rounds):
            timed = _run(experiment, folder / name / ".lab", f"round-{number}", trials)
            befores.append(timed.before)
            ours.append(timed.trials / trials)
            plain.append(_plain_loop(experiment.parent, trials, concurrency) / trials)
        ratio = paired_ratio(ours, plain)
        yield Row(
            f"wall time per trial, concurrency {concurrency}",
            f"{statistics.median(ours):.3f} s",
            f"{statistics.median(plain):.3f} s docker run --rm",
            f"{ratio:.2f}",
            f"≤ {GOAL}",
            ratio <= GOAL,
        )
    before = statistics.median(befores)
    yield Row("once a run: checks and set-up before the first trial", f"{before:.2f} s")


def _run(experiment: Path, lab: Path, run_id: str, trials: int) -> Timed:
    coordinator_began: list[float] = []

    def watch(event: dict[str, object]) -> None:
        if event["event"] == "run_started":
            coordinator_began.append(time.perf_counter())

    called = time.perf_counter()
    outcome = run(experiment, RunOptions(lab_dir=lab, run_id=run_id, tell=watch))
    ended = time.perf_counter()
    if outcome.summary["totals"]["pass"] != trials:
        raise RuntimeError(f"not every trial passed: {outcome.summary}")
    return Timed(coordinator_began[0] - called, ended - coordinator_began[0])


def _plain_loop(experiment: Path, trials: int, concurrency: int) -> float:
    """Seconds that a loop of `docker run --rm` takes for the same commands."""
    with tempfile.TemporaryDirectory(dir=experiment) as folder:
        begun = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            for done in [
                pool.submit(_plain_trial, experiment, Path(folder) / str(number))
                for number in range(trials)
            ]:
                done.result()
        return time.perf_counter() - begun


def _plain_trial(experiment: Path, folder: Path) -> None:
    mounts = {
        experiment / "agent.py": "/agentlab/deps/agent.py:ro",
        experiment / "grader.py": "/agentlab/deps/grader.py:ro",
        folder / "workspace": "/agentlab/workspace",
        folder / "out": "/agentlab/out",
    }
    for name in ("workspace", "out"):
        (folder / name).mkdir(parents=True)
    command = ["docker", "run", "--rm", "--network", "none", "-w", "/agentlab/workspace"]
    for source, target in mounts.items():
        command += ["-v", f"{source}:{target}"]
    for name, value in _ENVIRONMENT.items():
        command += ["-e", f"{name}={value}"]
    subprocess.run([*command, IMAGE, "sh", "-c", _COMMANDS], check=True)
    if not (folder / "out" / "benchmark_score.json").is_file():
        raise RuntimeError("a plain container wrote no score")
