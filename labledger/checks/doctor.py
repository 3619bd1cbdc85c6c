"""`labledger doctor`: checks of this machine and this ledger, with suggested fixes.

It changes nothing. A check that cannot be done is a failed check, not an exception.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator

from labledger import __version__
from labledger.checks.check_results import CheckResult, check_disk_space, failed, warned
from labledger.engine.engine import Engine
from labledger.engine.engine_facts import EngineFacts
from labledger.errors import EngineUnavailable, LabLedgerError, LedgerMissing
from labledger.execution.probe_owners import ProbeState, find_probes
from labledger.execution.process_identity import process_is_dead
from labledger.files.lab_folder import LabFolder
from labledger.ledger.database import migrations
from labledger.ledger.database.sqlite import DRIVER, driver_risk
from labledger.ledger.reader import LedgerReader
from labledger.records.outcomes import RunStatus
from labledger.text.figures import duration
from labledger.text.words import counted, counted_of
from labledger.trial.free_disk_space import DiskSpace
from labledger.trial.life.container_config import GROUPS_HINT


def diagnose(lab: LabFolder) -> list[CheckResult]:
    """Return the results of all checks, passed and failed."""
    python = f"labledger {__version__} on Python {platform.python_version()}"
    return [
        CheckResult("labledger", f"{python}, {sys.platform}"),
        *_docker(lab),
        _sqlite(),
        *_ledger(lab),
    ]


def _docker(lab: LabFolder) -> Iterator[CheckResult]:
    try:
        engine = Engine().connect()
        info = engine.info()
    except EngineUnavailable as error:
        yield failed("docker", error.message, hint=error.hint)
        yield check_disk_space(DiskSpace.of(lab.existing, {}))
        return
    facts = EngineFacts.of(info)
    yield CheckResult(
        "docker",
        f"{facts.details}, {counted(info['NCPU'], 'processor')}, {info['MemTotal'] / 1e9:.1f} GB",
    )
    yield from describe_shortcomings(facts)
    yield from _left_probes(engine)
    yield check_disk_space(DiskSpace.of(lab.existing, info))


def _left_probes(engine: Engine) -> Iterator[CheckResult]:
    """Yield a warning for each probe in the engine that is, or may be, left over."""
    try:
        probes = find_probes(engine)
    except LabLedgerError as error:
        yield failed("docker", error.message, hint=error.hint)
        return
    for probe in probes:
        what = f"{probe.kind} {probe.name}"
        if probe.state is ProbeState.LEFT:
            detail = f"{what} is left over: it belonged to {probe.owner}"
            yield warned("docker", detail, hint="`labledger clean` removes it")
        elif probe.is_suspect:
            of_container = f"`docker rm --force {probe.name}`"
            command = f"`docker network rm {probe.name}`" if probe.is_network else of_container
            yield warned(
                "docker",
                f"{what} is {duration(1000 * probe.age_s)} old and may be left over: it belongs to "
                f"{probe.owner}, and this process cannot see whether that one has ended",
                hint=f"if it has, remove it with {command}",
            )


def describe_shortcomings(facts: EngineFacts) -> Iterator[CheckResult]:
    """Yield an engine's shortcomings, as warnings if preflight refuses every run for them."""
    if facts.shortcoming is not None:
        yield warned(
            "docker", f"{facts.shortcoming}: preflight refuses runs here", hint=GROUPS_HINT
        )
    if facts.product == "Podman":
        yield CheckResult(
            "docker",
            f"{facts} runs every container with {facts.default_runtime}: `runtime.oci` cannot name "
            "another OCI runtime; no network `allowlist`, and no network of the grader's own; "
            "files that are copied from a container belong to root",
        )
        if not facts.is_rootless:
            yield CheckResult(
                "docker",
                f"{facts} does not protect the kernel's files in /proc: root in a container can "
                "change their modes for the machine and all other containers",
            )


def _sqlite() -> CheckResult:
    detail = f"SQLite {DRIVER.sqlite_version} by {DRIVER.__name__.partition('.')[0]}"
    risk = driver_risk()
    if risk is None:
        return CheckResult("sqlite", detail)
    return warned("sqlite", risk, hint="pip install pysqlite3")


def _ledger(lab: LabFolder) -> Iterator[CheckResult]:
    try:
        migrations.require_current(lab.ledger)
    except LedgerMissing:
        yield CheckResult("ledger", f"none at {lab.ledger}; `labledger run` creates it")
        return
    except LabLedgerError as error:
        yield failed("ledger", error.message, hint=error.hint)
        return
    with LedgerReader.open(lab.ledger) as reader:
        runs = reader.runs()
    size = sum(f.stat().st_size for f in lab.root.glob("ledger.sqlite*"))
    contents = f"{counted(len(runs), 'run')}, {size / 1e6:.1f} MB"
    detail = f"{lab.ledger}: revision {migrations.HEAD}, {contents}"
    yield CheckResult("ledger", detail)
    yield _artifact_store(lab)
    for run in runs:
        dead = run.lease is not None and process_is_dead(run.lease.owner)
        if run.status is RunStatus.INTERRUPTED or (run.status is RunStatus.RUNNING and dead):
            yield warned(
                "run",
                f"{run.run_id} stopped at "
                f"{counted_of(run.next_schedule_idx, run.total_slots, 'trial')}",
                hint=f"`labledger resume {run.run_id}` continues it",
            )


def _artifact_store(lab: LabFolder) -> CheckResult:
    used = sum(path.stat().st_size for path in lab.artifacts.rglob("*") if path.is_file())
    free = shutil.disk_usage(lab.root).free
    return CheckResult(
        "artifacts", f"{used / 1e6:.1f} MB of large artifacts; {free / 1e9:.1f} GB free"
    )
