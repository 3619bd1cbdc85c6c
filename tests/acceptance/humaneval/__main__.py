"""What `scripts/humaneval` does once the environment stands."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from humaneval.build import PROJECT, VARIANTS, build, data_file, read_problems
from humaneval.drive import Drive


def main() -> int:
    options = parse_options()
    if not options.data.is_file():
        say(f"error: there is no {options.data}: name the data by --data or HUMANEVAL_JSONL")
        return 2
    problems = read_problems(options.data, options.limit)
    trials = len(problems) * len(VARIANTS)
    run_id = f"humaneval-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    drive = Drive(build(problems, options.directory), options.directory / ".lab", run_id)
    say(f"{len(problems)} problems, {trials} trials, in {options.directory}")

    start = time.monotonic()
    if options.kill:
        before = drive.run_and_kill(trials // 2).count(b"\n")
        say(f"killed -9 the coordinator with {before} of {trials} slots committed; resuming")
        status = drive.resume()
    else:
        status = drive.run()
    say(f"{trials} trials in {time.monotonic() - start:.0f} s, exit status {status}")
    if status != 0:
        return status

    found = drive.verdicts()
    for (variant_id, verdict), count in sorted(found.items()):
        say(f"{variant_id}: {count} {verdict}")
    print(drive.output("verify", run_id), end="")
    expected = {(variant_id, verdict): len(problems) for variant_id, verdict in VARIANTS.items()}
    if found != expected:
        say(f"error: expected {expected}")
        return 1
    ledger = f"--lab-dir {options.directory}/.lab"
    say(f'ask more: labledger query "SELECT * FROM leaderboard" {ledger}')
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/humaneval", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=PROJECT / "build" / "humaneval")
    parser.add_argument("--limit", type=int, help="the first so many problems; else all")
    parser.add_argument("--data", type=Path, default=data_file())
    parser.add_argument("--kill", action="store_true", help="kill -9 half-way, then resume")
    return parser.parse_args()


def say(text: str) -> None:
    print(f"humaneval: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
