"""Runs on many hosts: three real ones of a test cluster, and very many made-up ones.

Real hosts need root, and share the processors of one machine.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from host_cluster.cluster import Cluster, Plan, cluster_in

from bench import synthetic
from bench.commands import environment, labledger
from bench.coordinator import timed
from bench.report import Row, say

GOAL_IDEAL = 1.25
"""How long 64 trials that sleep may take, as a multiple of their waves."""
GOAL_MB = 200
_HOSTS, _FLEET, _SLOTS = 3, 500, 8
_TRIALS, _SLEEP_S = 64, 2
_WORK = "import time; time.sleep({seconds})\n"
_RUN = "bench"
_VARIANTS, _REPLICATIONS = len(synthetic.VARIANTS), 25


@dataclass(frozen=True)
class _Times:
    """The time of a command, and from its run's first dispatch to the last commit."""

    command_s: float
    trials_s: float


def hosts(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Measure commands on three hosts of eight slots, beside this machine alone."""
    plan = Plan(_HOSTS, _SLOTS, (synthetic.IMAGE,))
    say(f"hosts: a cluster of {_HOSTS} hosts with {_SLOTS} slots each")
    with cluster_in(folder / "cluster", plan) as cluster:
        yield from _sleeping(folder, cluster)
        yield from _short(folder, cluster, 24 if quick else 100)
        yield from _inputs(folder, cluster)


def _sleeping(folder: Path, cluster: Cluster) -> Iterator[Row]:
    say(f"hosts: {_TRIALS} trials that sleep {_SLEEP_S} s, twice")
    experiment = _write(folder / "sleeping", _TRIALS, _SLEEP_S)
    runs = [_on_cluster(experiment, cluster) for _ in range(2)]
    plain_s = _plain_loop(cluster)
    waves = -(-_TRIALS // (_HOSTS * _SLOTS))
    ideal = waves * _SLEEP_S
    what = f"{_TRIALS} trials that sleep {_SLEEP_S} s on {_HOSTS} hosts × {_SLOTS} slots"
    for begin, seconds in (
        ("whole command", runs[-1].command_s),
        ("first dispatch to last commit", runs[-1].trials_s),
    ):
        yield Row(
            f"{what}, {begin}",
            f"{seconds:.1f} s",
            f"{ideal} s of sleep",
            f"{seconds / ideal:.2f}",
            f"≤ {GOAL_IDEAL}",
            seconds / ideal <= GOAL_IDEAL,
        )
    yield Row(
        "  first dispatch to last commit, beside the same containers by hand",
        f"{runs[-1].trials_s:.1f} s",
        f"{plain_s:.1f} s docker run --rm",
        f"{runs[-1].trials_s / plain_s:.2f}",
    )


def _plain_loop(cluster: Cluster) -> float:
    """Return the seconds of `docker run --rm` for as many sleeping containers at once."""
    sleep = ("python3", "-c", _WORK.format(seconds=_SLEEP_S))
    words = ("run", "--rm", "--network", "none", synthetic.IMAGE, *sleep)
    begun = time.perf_counter()
    with ThreadPoolExecutor(_HOSTS * _SLOTS) as pool:
        for done in [
            pool.submit(cluster.hosts[number % _HOSTS].docker, *words) for number in range(_TRIALS)
        ]:
            done.result()
    return time.perf_counter() - begun


def _short(folder: Path, cluster: Cluster, trials: int) -> Iterator[Row]:
    say(f"hosts: {trials} short trials, at concurrency 8, on the cluster and here")
    experiment = _write(folder / "short", trials, 0)
    _on_cluster(experiment, cluster)
    before = _bytes(cluster)
    spread = _on_cluster(experiment, cluster, "--max-concurrency", "8")
    after = _bytes(cluster)
    local = _run(experiment, labledger("run", experiment, "--max-concurrency", "8"))
    yield Row(
        f"command of {trials} short trials at concurrency 8, by trial",
        f"{spread.command_s / trials:.3f} s",
        f"{local.command_s / trials:.3f} s on this machine alone",
        f"{spread.command_s / local.command_s:.2f}",
    )
    yield Row(
        "  first dispatch to last commit, by trial",
        f"{spread.trials_s / trials:.3f} s",
        f"{local.trials_s / trials:.3f} s on this machine alone",
        f"{spread.trials_s / local.trials_s:.2f}",
    )
    yield Row(
        "bytes between coordinator and scheduler, by trial (inputs were there)",
        f"{(after[0] - before[0]) / trials / 1000:.1f} kB to it",
        f"{(after[1] - before[1]) / trials / 1000:.1f} kB from it",
    )


def _inputs(folder: Path, cluster: Cluster) -> Iterator[Row]:
    """Measure the bytes that are sent for a staged file that every trial needs."""
    trials, size = 2 * _HOSTS * _SLOTS, 20_000_000
    say(f"hosts: {trials} trials that share a file of {size / 1e6:.0f} MB")
    experiment = _write(folder / "inputs", trials, 0)
    # Random, so that it cannot be compressed.
    (experiment.parent / "model.bin").write_bytes(os.urandom(size))
    document = json.loads(experiment.read_text("utf-8"))
    document["runtime"]["agent"]["files"].append("model.bin")
    experiment.write_text(json.dumps(document), "utf-8")
    before = _bytes(cluster)[0]
    _on_cluster(experiment, cluster)
    sent = _bytes(cluster)[0] - before
    yield Row(
        f"sent to {_HOSTS} hosts, {trials} trials with a staged file of {size / 1e6:.0f} MB",
        f"{sent / 1e6:.1f} MB",
        f"{_HOSTS * size / 1e6:.0f} MB, once a host",
        f"{sent / (_HOSTS * size):.2f}",
    )


def fleet(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Measure a coordinator with 500 made-up hosts of 8 slots and a million slots.

    The hosts are another process. The coordinator is killed, and its run is resumed while they hold
    thousands of its attempts. The baseline is a local run of made-up trials, as many at once.
    """
    slots, dispatches = (20_000, 7_500) if quick else (1_000_000, 10_000)
    place, seconds = folder / "fleet", 4.0
    say(f"fleet: {slots:,} slots on {_FLEET:,} made-up hosts")
    tasks = slots // _VARIANTS // _REPLICATIONS
    synthetic.write_experiment(place, tasks=tasks, variants=_VARIANTS, replications=_REPLICATIONS)
    lab = ["--lab-dir", str(place / ".lab"), "--quiet"]
    with _made_up_hosts(folder / "socket", seconds) as socket:
        on = ["--on", "tcp://127.0.0.1:1"]
        run = ["run", str(place), "--run-id", _RUN, *on, *lab]
        first = _coordinator(socket, dispatches, run)
        say("fleet: the coordinator was killed; its run is resumed")
        again = _coordinator(socket, 1, ["resume", _RUN, *lab])
    shutil.rmtree(place)
    compared = 2_000 if quick else 8_000
    say(f"fleet: {compared:,} made-up trials without hosts")
    local = timed(folder / "local", compared, compared // 2, seconds)
    acknowledged = first["acknowledged"]
    yield Row(
        f"peak memory of the coordinator, {first['in_flight']:,} attempts submitted",
        f"{first['peak_mb']:.0f} MB",
        f"{slots:,} slots: {tasks:,} tasks × {_VARIANTS} × {_REPLICATIONS}",
        goal=f"< {GOAL_MB} MB",
        met=first["peak_mb"] < GOAL_MB,
    )
    yield Row("  threads of it at most", str(first["threads"]))
    yield Row(
        "trials dispatched, finished, committed and acknowledged, hosts full",
        f"{acknowledged / first['seconds']:,.0f}/s",
    )
    yield Row(
        "  processor time of each",
        f"{1000 * first['cpu_s'] / acknowledged:.2f} ms",
        f"{1000 * local['cpu_s'] / compared:.2f} ms without hosts",
    )
    yield Row(
        "  calls to hosts, and bytes before TLS, of each",
        f"{first['calls'] / acknowledged:.1f} calls",
        f"{first['received'] / acknowledged / 1000:.1f} kB from hosts, "
        f"{first['sent'] / acknowledged / 1000:.1f} kB to them",
    )
    yield Row(f"`run` to the first dispatch, {slots:,} slots", f"{first['first_dispatch_s']:.1f} s")
    yield Row(
        "`resume` after a kill to the first attempt that goes on",
        f"{again['first_dispatch_s']:.1f} s",
        f"{again['first_cpu_s']:.1f} s of processor time",
    )
    yield Row(
        f"  to the first new one, after {again['in_flight'] - 1:,} that go on",
        f"{again['first_new_s']:.1f} s",
    )


def _write(folder: Path, trials: int, sleep_s: int) -> Path:
    path = synthetic.write_experiment(folder, tasks=trials, concurrency=8)
    if sleep_s:
        (folder / "agent.py").write_text(_WORK.format(seconds=sleep_s) + synthetic.AGENT, "utf-8")
    return path


def _on_cluster(experiment: Path, cluster: Cluster, *words: str) -> _Times:
    command = labledger("run", experiment, "--on", cluster.file, *words)
    return _run(experiment, [*cluster.in_network(), *command])


def _run(experiment: Path, command: list[str]) -> _Times:
    """Run a whole command in a new lab."""
    lab = experiment.parent / ".lab"
    words = [*command, "--lab-dir", str(lab), "--quiet"]
    begun = time.perf_counter()
    subprocess.run(words, check=True, env=environment(), stdout=subprocess.DEVNULL)
    command_s = time.perf_counter() - begun
    with closing(sqlite3.connect(lab / "ledger.sqlite")) as ledger:
        [(passed, slots, first, last)] = ledger.execute(
            "SELECT (SELECT count(*) FROM scores WHERE verdict = 'pass'), "
            "(SELECT count(*) FROM slot_commit), (SELECT min(dispatched_at) FROM dispatch), "
            "(SELECT max(committed_at) FROM slot_commit)"
        )
    shutil.rmtree(lab)
    if passed != slots:
        raise RuntimeError("not every trial passed")
    trials_s = datetime.fromisoformat(last) - datetime.fromisoformat(first)
    return _Times(command_s, trials_s.total_seconds())


def _bytes(cluster: Cluster) -> tuple[int, int]:
    """Return the bytes that the coordinator's network interface has sent and received."""
    shown = Path(f"/proc/{cluster.ground.init}/net/dev").read_text("utf-8").splitlines()
    [line] = [line for line in shown if line.strip().startswith("hosts:")]
    numbers = line.partition(":")[2].split()
    return int(numbers[8]), int(numbers[0])


@contextmanager
def _made_up_hosts(socket: Path, seconds: float) -> Iterator[Path]:
    """The process of the made-up hosts, whose trials take about so long."""
    words = [str(socket), str(_FLEET), str(_SLOTS), str(seconds)]
    program = [sys.executable, "-m", "bench.made_up_hosts", *words]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as hosts:
        try:
            assert hosts.stdout is not None
            hosts.stdout.readline()
            yield socket
        finally:
            hosts.kill()


def _coordinator(socket: Path, dispatches: int, command: list[str]) -> dict[str, Any]:
    """Run a `labledger` command with made-up hosts, in a process of its own."""
    program = [sys.executable, "-m", "bench.made_up_cluster", str(time.monotonic())]
    words = [*program, str(socket), str(_FLEET), str(dispatches), "--", *command]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"labledger {' '.join(command)} failed:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
