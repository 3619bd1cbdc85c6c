"""Mutants: patches that break the product on purpose, to show that the simulation notices.

Each `mutants/NAME.patch` changes `labledger/`. Its first line says what breaks and what that would
cost a user. A second line may name the kind of worlds in which it matters. The simulation runs on
a patched copy.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("mutants")
PROJECT = Path(__file__).parents[2]
LIMIT_S = 600
"""How long a mutant may stay unnoticed, in seconds."""
_COPIED = ("labledger", "migrations", "schemas")
_DESIGN = re.compile(r"^# In worlds of the design `(\w+)`", re.MULTILINE)
_WORLDS = re.compile(r"^simulate: (\d+) runs", re.MULTILINE)
_FAILURE = re.compile(r"^seed (\d+): (?:[A-Z]\w+: )?(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the simulation for a mutant."""

    name: str
    worlds: int
    """The number of worlds until it was found; 0 if it was not."""
    seconds: float
    guarantee: str
    """The guarantee that failed, or why nothing is known."""


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.patch"))


@contextmanager
def mutated(name: str) -> Iterator[Path]:
    """Provide a copy of the product with a patch. Raises what `apply` raises."""
    with tempfile.TemporaryDirectory(prefix="labledger-mutant-") as folder:
        for part in _COPIED:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PROJECT / part, Path(folder, part), ignore=ignored)
        apply(name, Path(folder))
        yield Path(folder)


def apply(name: str, folder: Path, *options: str) -> None:
    """Apply a mutant to the product in a folder. Raises `CalledProcessError` if it does not fit."""
    patch = FOLDER / f"{name}.patch"
    command = ["patch", "-p1", "--batch", "--fuzz=0", f"--input={patch}", *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


def run(chosen: Sequence[str], *options: str, first: int) -> int:
    """Simulate each mutant until it is found, print a table, and return 1 if one was not."""
    width = max(map(len, chosen), default=0)
    print(f"{'mutant':<{width}}  found  worlds  seconds  by", flush=True)
    missed = 0
    for name in chosen:
        verdict = simulate(name, first, *options)
        missed += not verdict.worlds
        noticed = "yes" if verdict.worlds else "NO"
        print(
            f"{name:<{width}}  {noticed:<5}  {verdict.worlds or '':>6}  {verdict.seconds:>7.0f}  "
            f"{verdict.guarantee}",
            flush=True,
        )
    print(f"simulate: {len(chosen) - missed} of {len(chosen)} mutants found")
    return int(missed > 0)


def simulate(name: str, first: int, *options: str) -> Verdict:
    """Simulate a mutant until it is found: in a world that the product itself passes."""
    started_s = time.monotonic()
    try:
        with mutated(name) as copy:
            first_seed, limit = f"--first={first}", f"--seconds={LIMIT_S}"
            output = _worlds_of(copy, first_seed, limit, *design_of(name), *options)
    except subprocess.CalledProcessError as error:
        return Verdict(name, 0, 0.0, f"the patch does not apply: {error.stdout.strip()[:200]}")
    failures = [(int(seed), text) for seed, text in _FAILURE.findall(output)]
    worlds = _WORLDS.search(output)
    seconds = time.monotonic() - started_s
    if failures and worlds:
        seed, text = min(failures)
        if "every guarantee held" not in _worlds_of(PROJECT, f"--first={seed}", "--worlds=1"):
            return Verdict(name, 0, seconds, f"seed {seed} fails without it, too")
        return Verdict(name, int(worlds[1]), seconds, text[:100])
    is_whole = "every guarantee held" in output
    why = "every guarantee held" if is_whole else f"the simulation failed: {output[-300:]}"
    return Verdict(name, 0, seconds, why)


def design_of(name: str) -> tuple[str, ...]:
    """Return the option for the kind of worlds in which a mutant matters, if it names one."""
    design = _DESIGN.search((FOLDER / f"{name}.patch").read_text("utf-8"))
    return (f"--design={design[1]}",) if design else ()


def _worlds_of(copy: Path, *options: str) -> str:
    paths = os.pathsep.join((str(copy), str(PROJECT / "tests")))
    command = [sys.executable, "-m", "simulation", "--until-failure", *options]
    done = subprocess.run(
        command,
        cwd=copy,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def main() -> None:
    """Run `scripts/simulate --mutants`."""
    parser = argparse.ArgumentParser("scripts/simulate --mutants")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if unknown := set(options.names) - set(names()):
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    processes = f"--processes={options.processes}"
    sys.exit(run(options.names or names(), processes, first=options.first))


if __name__ == "__main__":
    main()
