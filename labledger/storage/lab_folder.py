"""The lab folder, which holds the ledger, the artifact store and the run folders.

Every command finds it in the same way: an explicit path, `LABLEDGER_DIR`, or the nearest `.lab`
folder upwards from the working directory. It is closed to other users of the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from labledger.storage.durable_files import make_folder

FOLDER = ".lab"
VARIABLE = "LABLEDGER_DIR"


@dataclass(frozen=True, slots=True)
class LabFolder:
    """The paths of one lab folder. Nothing in it exists until a run is created."""

    root: Path

    @classmethod
    def find(cls, given: Path | str | None = None) -> LabFolder:
        """Return the lab folder `given`, else `$LABLEDGER_DIR`, else the nearest `.lab` upwards.

        If there is none upwards, return the one that would be created in the working directory.
        """
        if given is not None:
            return cls(Path(given).absolute())
        if from_environment := os.environ.get(VARIABLE):
            return cls(Path(from_environment).absolute())
        working_dir = Path.cwd()
        for folder in (working_dir, *working_dir.parents):
            if (folder / FOLDER).is_dir():
                return cls(folder / FOLDER)
        return cls(working_dir / FOLDER)

    @property
    def existing(self) -> Path:
        """The nearest existing path: the lab folder itself, or a folder above it."""
        return next(path for path in (self.root, *self.root.parents) if os.access(path, os.F_OK))

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def benchmarks(self) -> Path:
        """The folder of the experiments that benchmarks were translated to."""
        return self.root / "benchmarks"

    @property
    def builds(self) -> Path:
        """The folder of the logs of images that were built."""
        return self.root / "builds"

    def run_folder(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def create(self) -> None:
        """Create the lab folder, closed to other users of this machine."""
        make_folder(self.root)
        self.root.chmod(0o700)
        ignore = self.root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", "utf-8")
