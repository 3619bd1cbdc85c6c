"""The labledger command as users start it: run, killed with SIGKILL, resumed, queried."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LABLEDGER = [sys.executable, "-m", "labledger"]
COORDINATOR_LIMIT_S = 1800


@dataclass(frozen=True)
class Drive:
    """One run of one experiment."""

    experiment: Path
    lab_dir: Path
    run_id: str

    @property
    def scores(self) -> Path:
        return self.lab_dir / "runs" / self.run_id / "benchmark" / "scores.jsonl"

    def run(self) -> int:
        """Run to the end; returns the exit code."""
        return subprocess.run(
            self._run_command(), check=False, timeout=COORDINATOR_LIMIT_S
        ).returncode

    def run_and_kill(self, committed: int) -> bytes:
        """Run, and `kill -9` the coordinator when this many slots are committed; return the mirror.

        Raises `RuntimeError` if the run ends before that.
        """
        deadline = time.monotonic() + COORDINATOR_LIMIT_S
        with subprocess.Popen(self._run_command()) as coordinator:
            try:
                while self._mirrored().count(b"\n") < committed:
                    if coordinator.poll() is not None:
                        raise RuntimeError(f"ended by itself, with {coordinator.returncode}")
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"no {committed} commits in {COORDINATOR_LIMIT_S} s")
                    time.sleep(0.01)
            finally:
                coordinator.kill()
        return self._mirrored()

    def resume(self) -> int:
        """Resume to the end; returns the exit code."""
        command = [*LABLEDGER, "resume", self.run_id, *self._lab]
        return subprocess.run(command, check=False, timeout=COORDINATOR_LIMIT_S).returncode

    def regrade(self, grader: Path) -> int:
        """Regrade the run's evidence with another grader; returns the exit code."""
        command = [*LABLEDGER, "regrade", self.run_id, "--grader", str(grader), *self._lab]
        return subprocess.run(command, check=False, timeout=COORDINATOR_LIMIT_S).returncode

    def verdicts(self) -> dict[tuple[str, str], int]:
        """Return the number of trials by variant and verdict, from the ledger."""
        sql = (
            "SELECT variant_id, verdict, COUNT(*) AS trials FROM scores "
            "WHERE run_id = :run GROUP BY variant_id, verdict"
        )
        rows = json.loads(
            self.output("query", sql, "--param", f"run={self.run_id}", "--format", "json")
        )
        return {(row["variant_id"], row["verdict"]): row["trials"] for row in rows}

    def output(self, *arguments: str) -> str:
        """Return the output of a labledger command. Raises `CalledProcessError` if it fails."""
        command = [*LABLEDGER, *arguments, *self._lab]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout

    @property
    def _lab(self) -> list[str]:
        return ["--lab-dir", str(self.lab_dir)]

    def _run_command(self) -> list[str]:
        return [*LABLEDGER, "run", str(self.experiment), "--run-id", self.run_id, *self._lab]

    def _mirrored(self) -> bytes:
        return self.scores.read_bytes() if self.scores.exists() else b""
