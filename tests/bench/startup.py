"""How long short commands take as whole processes, beside a Python that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.commands import PYTHON, labledger, seconds, spread
from bench.report import Row, paired_ratio
from bench.synthetic import new_run, result, slot, task_rows
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import migrations
from labledger.ledger.database.run_info import Owner
from labledger.ledger.writer import LedgerWriter

GOAL_OF_HELP, GOAL_OF_AN_ANSWER = 8, 14
"""How many times as long as an empty Python `labledger --help`, and a short answer, may take."""
_SLOTS = 10


def measure(folder: Path, *, quick: bool) -> Iterator[Row]:
    lab = _lab(folder / "startup")
    at_lab = ("--lab-dir", lab)
    commands = {
        "labledger --help": labledger("--help"),
        "labledger runs": labledger("runs", *at_lab),
        "labledger status": labledger("status", "bench", *at_lab),
        "labledger query, one row": labledger("query", "SELECT count(*) FROM scores", *at_lab),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    plain: list[float] = []
    for command in commands.values():
        seconds(command)  # The first compiles what is not compiled yet.
    for _ in range(7 if quick else 21):
        plain.append(seconds(PYTHON))
        for name, command in commands.items():
            times[name].append(seconds(command))
    for name, ours in times.items():
        ratio = paired_ratio(ours, plain)
        row = Row(name, spread(ours), f"{spread(plain)} python -c pass", f"{ratio:.1f}")
        goal = GOAL_OF_HELP if name.endswith("--help") else GOAL_OF_AN_ANSWER
        yield row.with_goal(f"≤ {goal}", ratio <= goal)


def _lab(lab: Path) -> Path:
    """A lab whose ledger holds one complete run."""
    store = ArtifactStore(lab / "artifacts")
    migrations.upgrade(lab / "ledger.sqlite")
    with LedgerWriter.open(lab / "ledger.sqlite", store) as writer:
        writer.create_run(new_run("bench"), task_rows(_SLOTS), map(slot, range(_SLOTS)))
        lease = writer.leases.acquire("bench", Owner("bench", 0, "bench"), 30.0)
        for idx in range(_SLOTS):
            writer.commit_result(lease, result("bench", slot(idx)))
    return lab
