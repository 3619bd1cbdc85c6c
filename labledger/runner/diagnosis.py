"""`labledger doctor`: what is wrong with this machine or this ledger, and what mends it."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator

from labledger import __version__
from labledger.errors import EngineUnavailable, LabLedgerError, LedgerMissing
from labledger.ledger import migrate
from labledger.ledger.engine import DRIVER, driver_risk
from labledger.ledger.reader import LedgerReader
from labledger.plurals import counted
from labledger.records import JsonObject, RunStatus
from labledger.runner.checks import Check, check_room
from labledger.runner.lab import LabFolder
from labledger.runner.lease import holder_is_dead
from labledger.runner.room import DiskSpace
from labledger.trial.container import Engine


def diagnose(lab: LabFolder) -> list[Check]:
    """Everything worth knowing, the good and the bad."""
    python = f"labledger {__version__} on Python {platform.python_version()}"
    return [
        Check("labledger", f"{python}, {sys.platform}"),
        *_docker(lab),
        _sqlite(),
        *_ledger(lab),
    ]


def _docker(lab: LabFolder) -> Iterator[Check]:
    try:
        engine = Engine.connect()
        info = engine.info()
    except EngineUnavailable as error:
        yield Check("docker", error.message, ok=False, hint=error.hint)
        yield check_room(DiskSpace.of(lab.existing, {}))
        return
    yield Check(
        "docker",
        f"engine {info['ServerVersion']}, {info['Driver']}, cgroup {info.get('CgroupVersion', 1)}, "
        f"{info['NCPU']} processors, {info['MemTotal'] / 1e9:.1f} GB",
    )
    yield from _limits(info)
    yield check_room(DiskSpace.of(lab.existing, info))


def _limits(info: JsonObject) -> Iterator[Check]:
    """Limits that the engine cannot enforce."""
    for key, what in (("MemoryLimit", "memory"), ("PidsLimit", "pids"), ("CpuCfsQuota", "cpus")):
        if info.get(key) is False:
            yield Check(
                "docker",
                f"the engine cannot limit {what}: runtime.resources.{what} has no effect",
                ok=False,
                hint="enable the matching cgroup controller on the host",
                warning=True,
            )


def _sqlite() -> Check:
    detail = f"SQLite {DRIVER.sqlite_version} by {DRIVER.__name__.partition('.')[0]}"
    risk = driver_risk()
    if risk is None:
        return Check("sqlite", detail)
    return Check("sqlite", risk, ok=False, hint="pip install pysqlite3", warning=True)


def _ledger(lab: LabFolder) -> Iterator[Check]:
    try:
        migrate.check_current(lab.ledger)
    except LedgerMissing:
        yield Check("ledger", f"none at {lab.ledger}; `labledger run` makes it")
        return
    except LabLedgerError as error:
        yield Check("ledger", error.message, ok=False, hint=error.hint)
        return
    with LedgerReader.open(lab.ledger) as reader:
        runs = reader.runs()
    size = sum(f.stat().st_size for f in lab.root.glob("ledger.sqlite*"))
    detail = (
        f"{lab.ledger}: revision {migrate.HEAD}, {counted(len(runs), 'run')}, {size / 1e6:.1f} MB"
    )
    yield Check("ledger", detail)
    yield _old_files(lab)
    for run in runs:
        dead = run.lease is not None and holder_is_dead(run.lease)
        if run.status is RunStatus.INTERRUPTED or (run.status is RunStatus.RUNNING and dead):
            yield Check(
                "run",
                f"{run.run_id} stopped at {run.next_schedule_idx} of {run.total_slots} slots",
                ok=False,
                hint=f"`labledger resume {run.run_id}` goes on with it",
                warning=True,
            )


def _old_files(lab: LabFolder) -> Check:
    used = sum(path.stat().st_size for path in lab.artifacts.rglob("*") if path.is_file())
    free = shutil.disk_usage(lab.root).free
    return Check("artifacts", f"{used / 1e6:.1f} MB of large artifacts; {free / 1e9:.1f} GB free")
