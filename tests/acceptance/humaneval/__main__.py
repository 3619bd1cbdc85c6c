"""The command `scripts/humaneval`, run in the prepared environment."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from humaneval.build import (
    PROJECT,
    REPLICATIONS,
    VARIANTS,
    Outcomes,
    build,
    data_file,
    expected,
    read_problems,
)
from humaneval.drive import Drive


def main() -> int:
    options = parse_options()
    if not options.data.is_file():
        say(f"error: there is no {options.data}: name the data by --data or HUMANEVAL_JSONL")
        return 2
    problems = read_problems(options.data, options.limit)
    if options.cluster is not None:
        from humaneval.on_hosts import Proof

        folder = options.directory / "on-hosts"
        proof = Proof(problems, options.replications, options.cluster, options.seed)
        return 0 if proof.holds(folder, say) else 1
    replications = options.replications
    trials = len(problems) * len(VARIANTS) * replications
    run_id = f"humaneval-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    experiment = build(problems, options.directory, replications)
    drive = Drive(experiment, options.directory / ".lab", run_id)
    say(f"{len(problems)} problems, {trials} trials, in {options.directory}")

    start = time.monotonic()
    if options.kill:
        before = drive.run_and_kill(trials // 2).count(b"\n")
        say(f"killed -9 the coordinator with {before} of {trials} trials saved; resuming")
        status = drive.resume()
    else:
        status = drive.run()
    say(f"{trials} trials in {time.monotonic() - start:.0f} s, exit status {status}")
    if status != 0:
        return status

    agree = [compare_verdicts(drive, expected(problems, replications=replications))]
    print(drive.output("compare", run_id), end="")
    report = options.directory / "report.html"
    drive.output("report", run_id, "--out", str(report))
    say(f"the report: {report}")

    start = time.monotonic()
    status = drive.regrade(options.directory / "strict.yaml")
    say(f"{trials} trials regraded in {time.monotonic() - start:.0f} s, exit status {status}")
    if status != 0:
        return status
    expected_verdicts = expected(problems, strict=True, replications=replications)
    agree.append(compare_verdicts(drive, expected_verdicts))
    print(drive.output("compare", f"{run_id}.g1", f"{run_id}.g2"), end="")
    print(drive.output("verify"), end="")
    ledger = f"--lab-dir {options.directory}/.lab"
    say(f'ask more: labledger query "SELECT * FROM gradings" {ledger}')
    return 0 if all(agree) else 1


def compare_verdicts(drive: Drive, expected_verdicts: Outcomes) -> bool:
    """Print the verdicts of each variant; return whether they are the expected ones."""
    actual = drive.verdicts()
    for (variant_id, verdict), count in sorted(actual.items()):
        say(f"{variant_id}: {count} {verdict}")
    if actual != expected_verdicts:
        say(f"error: expected {expected_verdicts}")
    return actual == expected_verdicts


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/humaneval", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=PROJECT / "build" / "humaneval")
    parser.add_argument("--limit", type=int, help="the first so many problems; else all")
    parser.add_argument("--replications", type=int, default=REPLICATIONS)
    parser.add_argument("--data", type=Path, default=data_file())
    parser.add_argument("--kill", action="store_true", help="kill -9 half-way, then resume")
    parser.add_argument(
        "--cluster",
        type=int,
        nargs="?",
        const=1,
        metavar="DEATHS",
        help="run it on three hosts, as root, whose parts are killed so many times or more",
    )
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the kills")
    return parser.parse_args()


def say(text: str) -> None:
    print(f"humaneval: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
