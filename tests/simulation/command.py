"""The command `scripts/simulate`: worlds from new seeds, or from given ones."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import labledger
from labledger import resources
from labledger.files.lab_folder import LabFolder
from labledger.records import json_schemas
from labledger.upkeep.verify_lab import verify_lab
from simulation import clusters, disk, labs, runs, scheduler, seam, shrinking
from simulation.invariants import Violation

SEEDS = Path(__file__).with_name("seeds.json")
"""The seeds that failed once, each with its fault."""
_PER_PROCESS = 1
"""How many worlds one process simulates, so that caches are empty in each."""
_MAX_WORLD_S = 120
_SHRUNK = 3
"""For how many failures the shortest log is searched."""
_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None
_elapsed = os.times
"""The machine's clock, because the clocks of `time` are simulated."""


@dataclass(slots=True)
class Tally:
    """The totals of simulated worlds."""

    worlds: int = 0
    processor_s: float = 0.0
    slots: int = 0
    events: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, report: dict[str, Any]) -> None:
        self.worlds += 1
        self.processor_s += report["cpu_s"]
        self.slots += report["slots"]
        self.events.update(report["events"])
        if report["failure"] is not None:
            self.failures.append((report["seed"], report["failure"]))


def main() -> None:
    parser = argparse.ArgumentParser("scripts/simulate", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--seconds", type=float, default=60.0, help="new seeds for so long (60)")
    choice.add_argument("--hours", type=float, help="the same in hours")
    choice.add_argument("--seed", type=int, help="this world alone, with all that happens in it")
    choice.add_argument("--known", action="store_true", help="the seeds that ever failed")
    choice.add_argument("--worlds", type=int, help="so many new seeds")
    choice.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="the product broken on purpose"
    )
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="MISHAP", help="what does not happen"
    )
    parser.add_argument("--first", type=int, help="the first of the new seeds")
    parser.add_argument(
        "--design", choices=labs.DESIGNS, help="of the new seeds, these worlds alone"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--until-failure", action="store_true", help="end with the first failure")
    options = parser.parse_args()
    if options.mutants is not None:
        # The time is real in this process.
        arguments = (f"--first={options.first or 1}", f"--processes={options.processes}")
        command = [sys.executable, "-m", "simulation.mutants", *options.mutants, *arguments]
        os.execv(sys.executable, command)
    with prepared() as folder:
        if options.seed is not None:
            code = _show(options.seed, folder, options.without)
        else:
            code = _simulate(options, folder)
    sys.stdout.flush()
    os._exit(code)


def _simulate(options: argparse.Namespace, folder: Path) -> int:
    started_s = _elapsed().elapsed
    tally = Tally()
    seconds = 3600 * options.hours if options.hours else options.seconds
    if options.known:
        seeds: Iterator[int] = iter(known_seeds())
    else:
        first = options.first
        first = random.SystemRandom().randrange(10**9) if first is None else first
        last = first + options.worlds if options.worlds else 10**12
        seeds = (seed for seed in range(first, last) if options.design in (None, design_of(seed)))
        print(f"simulate: seeds from {first} on", flush=True)

    def ends() -> bool:
        is_late = not (options.known or options.worlds) and _elapsed().elapsed - started_s > seconds
        return is_late or (options.until_failure and bool(tally.failures))

    for report in _in_processes(seeds, folder, ends, options.processes, options.without):
        tally.add(report)
        if report["failure"] is not None:
            print(f"\nseed {report['seed']}: {report['failure']}\n", flush=True)
    _report(tally, _elapsed().elapsed - started_s)
    for seed, _ in [] if options.until_failure else tally.failures[:_SHRUNK]:
        _show_shortest(seed, folder)
    return int(bool(tally.failures))


def known_seeds() -> list[int]:
    return [int(seed) for seed in json.loads(SEEDS.read_text("utf-8"))["seeds"]]


def _report(tally: Tally, seconds: float) -> None:
    happened = ", ".join(f"{count} × {kind}" for kind, count in tally.events.most_common())
    print(f"simulate: {happened}")
    rate = 60 * tally.worlds / max(tally.processor_s, 0.01)
    print(
        f"simulate: {tally.worlds} runs, {tally.slots} slots committed, in {seconds:.0f} s; "
        f"{rate:.0f} runs a minute and core"
    )
    for seed, failure in tally.failures:
        print(f"simulate: failed: scripts/simulate --seed {seed}: {failure}")
    if not tally.failures:
        print("simulate: every guarantee held")


# -- worlds in processes of their own


@contextmanager
def prepared() -> Iterator[Path]:
    """Provide a folder with lab templates, and simulate in this process from now on."""
    scheduler.enter(scheduler.Scheduler(0))
    folder = Path(tempfile.mkdtemp(prefix="labledger-simulation-", dir=_FOLDER))
    try:
        disk.install()
        for design in labs.DESIGNS:
            labs.make_template(folder / "templates" / design, design)
        import_everything()
        # Fill the caches of a process here, once for all forked processes.
        verify_lab(LabFolder(folder / "templates" / "plain" / "lab"), None)
        for schema in resources.schemas().glob("*.jsonschema"):
            list(json_schemas.problems({}, schema.stem))
        seam.install()
        gc.collect()
        gc.freeze()
        gc.disable()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def import_everything() -> None:
    """Import the whole product, so that no world imports anything late."""
    for module in pkgutil.walk_packages(labledger.__path__, "labledger."):
        if "__main__" not in module.name and "dask" not in module.name:
            with suppress(ImportError):
                importlib.import_module(module.name)


def _in_processes(
    seeds: Iterator[int],
    folder: Path,
    ends: Callable[[], bool],
    processes: int,
    left_out: Collection[str],
) -> Iterator[dict[str, Any]]:
    """Simulate worlds in several processes at once, and yield their reports."""
    running: dict[int, tuple[int, list[int]]] = {}
    while True:
        while len(running) < processes and not ends():
            batch = [seed for _, seed in zip(range(_PER_PROCESS), seeds, strict=False)]
            if not batch:
                break
            read, write = os.pipe()
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                os.close(read)
                _simulate_batch(batch, folder, write, left_out)
            os.close(write)
            running[child] = read, batch
        if not running:
            return
        child, status = os.wait()
        read, batch = running.pop(child)
        with os.fdopen(read, "rb") as pipe:
            lines = pipe.read().splitlines()
        done = [json.loads(line) for line in lines]
        yield from done
        if len(done) < len(batch):
            seed = batch[len(done)]
            how = "does not end" if status else "was not reported"
            empty = {"cpu_s": 0.0, "slots": 0, "events": {}}
            yield {"seed": seed, "failure": f"the world {how} (status {status})", **empty}
        for seed in batch:
            shutil.rmtree(folder / f"world-{seed}", ignore_errors=True)


def _simulate_batch(batch: list[int], folder: Path, write: int, left_out: Collection[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for seed in batch:
        faulthandler.dump_traceback_later(_MAX_WORLD_S, exit=True)
        started_s = sum(_elapsed()[:2])
        world, failure = _one(seed, folder, left_out)
        report = {
            "seed": seed,
            "failure": failure,
            "cpu_s": sum(_elapsed()[:2]) - started_s,
            "slots": sum(world.observed.next_idx.values()),
            "events": world.events,
        }
        os.write(write, json.dumps(report).encode() + b"\n")
        shutil.rmtree(folder / f"world-{seed}", ignore_errors=True)
    os._exit(0)


def design_of(seed: int) -> str:
    """Return the kind of experiment in the world of a seed."""
    designs = sorted(labs.DESIGNS)
    return designs[seed % len(designs)]


def _one(seed: int, folder: Path, left_out: Collection[str] = ()) -> tuple[runs.World, str | None]:
    design = design_of(seed)
    kind = clusters.ClusterWorld if design == "cluster" else runs.World
    world = kind(seed, folder / "templates" / design, folder / f"world-{seed}", design, left_out)
    try:
        world.run()
    except BaseException as error:
        scheduler.world().note(f"{type(error).__name__}: {error}")
        if not isinstance(error, Violation):
            scheduler.world().note(traceback.format_exc())
        return world, f"{type(error).__name__}: {error}".replace(str(folder), "")[:600]
    return world, None


# -- one world, and the shortest that fails as it does


def _simulated(seed: int, folder: Path, left_out: Collection[str]) -> shrinking.Story | None:
    """Simulate one world in a new process, in which SQLite starts afresh.

    Returns None if it does not end.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read)
        faulthandler.dump_traceback_later(_MAX_WORLD_S, exit=True)
        world, failure = _one(seed, folder, left_out)
        log = "\n".join(world.time.log).replace(str(folder), "")
        story = shrinking.Story(tuple(left_out), tuple(world.mishaps), failure, log, world.design)
        with os.fdopen(write, "w") as pipe:
            json.dump(asdict(story), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    shutil.rmtree(folder / f"world-{seed}", ignore_errors=True)
    return shrinking.Story(**json.loads(text)) if text else None


def _show(seed: int, folder: Path, left_out: Collection[str]) -> int:
    story = _simulated(seed, folder, left_out)
    if story is None:
        print(f"seed {seed}: the world does not end")
        return 1
    print(story.log)
    print(f"mishaps: {' '.join(story.happened) or 'none'}")
    print(f"seed {seed}, {story.design}: {story.failure or 'every guarantee held'}")
    if story.failure is not None and not left_out:
        _show_shortest(seed, folder)
    return int(story.failure is not None)


def _show_shortest(seed: int, folder: Path) -> None:
    """Print the log of the world of a seed that fails with the fewest mishaps."""
    story = _simulated(seed, folder, ())
    if story is None or story.failure is None:
        return
    shortest = shrinking.shrink(story, partial(_simulated, seed, folder))
    print(f"\nseed {seed} fails with {len(shortest.happened)} of {len(story.happened)} mishaps:")
    print(shortest.log)
    print(f"seed {seed}, {shortest.design}: {shortest.failure}")
    print(f"simulate: scripts/simulate --seed {seed} --without {' '.join(shortest.left_out)}")
