"""`labledger verify`: check the ledger against its digests, and run folders against the ledger.

Checks mirrors, the staged programs and installed agents of the next trials, and folders of unknown
runs. Skips mirrors, chain files and summaries of running runs, because their owner writes them.
Hosts of a cluster check their programs themselves. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labledger.errors import LabLedgerError, LedgerDamaged
from labledger.execution.frozen_agents import find_changed_agents
from labledger.experiment.plan import ExperimentPlan
from labledger.export import mirrors, summary
from labledger.export.mirrors import Difference, NotRegularError, read_regular
from labledger.files.artifact_store import ArtifactStore
from labledger.files.lab_folder import LabFolder
from labledger.ledger.checking.slot_checks import UNREADABLE
from labledger.ledger.checking.verify import VerificationResult, verify
from labledger.ledger.database.sqlite import recovery_hint
from labledger.ledger.reader import LedgerReader
from labledger.records.json_codec import JsonForm
from labledger.records.outcomes import RunStatus
from labledger.text.words import counted
from labledger.trial.life import shared_files


def find_changed_programs(lab: LabFolder, reader: LedgerReader, run_id: str) -> Iterator[str]:
    """Yield how the staged programs of a run differ from what it was started with."""
    folder = lab.run_folder(run_id)
    deps = folder / "deps"
    try:
        if deps.is_dir():
            plan = ExperimentPlan.of_document(reader.run(run_id).resolved)
            yield from shared_files.find_changes(plan.files, deps, sealed=plan.is_sealed)
        yield from shared_files.find_changes_of_task_files(folder, ArtifactStore(lab.artifacts))
    except (LabLedgerError, OSError, *UNREADABLE) as error:
        yield f"{folder}: its staged programs cannot be compared: {error}"


def find_changed_installations(reader: LedgerReader, run_id: str) -> Iterator[str]:
    """Yield how installed agents differ from the agents that a run began with.

    Rows that cannot be read have their own findings.
    """
    try:
        run = reader.run(run_id)
        if not any(variant.get("profile") for variant in run.resolved.get("variants", ())):
            return
        plan = ExperimentPlan.of_document(run.resolved)
        is_complete = run.status is RunStatus.COMPLETED
        yield from find_changed_agents(plan, reader, run_id, is_complete=is_complete)
    except (LabLedgerError, OSError, *UNREADABLE):
        return


def run_folders(lab: LabFolder) -> list[str]:
    """Return the names of the run folders."""
    folders = lab.root.joinpath("runs").glob("[!.]*")
    return sorted(path.name for path in folders if path.is_dir())


def find_unknown_runs(
    lab: LabFolder, folders: Collection[str], known: Collection[str]
) -> Iterator[str]:
    """Yield the run folders of runs that the ledger does not have.

    `known` are the ids of its runs, and of deleted ones, read after `folders`.
    """
    for name in sorted(set(folders) - set(known)):
        folder = lab.run_folder(name)
        if (folder / mirrors.CHAIN_PATH).is_file():
            hint = f"`labledger import {folder}` adds it"
        else:
            hint = "restore the ledger from a copy that has it, with its -wal file if there is one"
        yield f"{folder}: the ledger does not have the run of this folder; {hint}"


@dataclass(frozen=True, slots=True)
class VerificationReport(JsonForm):
    """How much was verified, and everything that differs from what was committed."""

    runs: int
    slots: int
    artifacts: int
    deleted: tuple[str, ...]
    """The ids of deleted runs. Their tombstones were verified, and nothing else is left of them."""
    findings: tuple[str, ...]
    """A message for each difference; empty if there is none."""

    def line(self) -> str:
        """Return one line for a person."""
        verified = ", ".join(
            (
                counted(self.runs, "run"),
                counted(self.slots, "commit"),
                counted(self.artifacts, "artifact"),
            )
        )
        if not self.findings:
            line = f"verified: {verified}; nothing was changed, removed or inserted"
            if not self.deleted:
                return line
            return f"{line}, except {counted(len(self.deleted), 'run')} deleted with a tombstone"
        return f"{counted(len(self.findings), 'finding')} in {verified}"


def verify_lab(lab: LabFolder, run_id: str | None) -> VerificationReport:
    """Verify one run, or all runs and their artifacts if `run_id` is None.

    Raises `LedgerDamaged` if the file is damaged so much that nothing can be verified.
    """
    try:
        return _verify_lab(lab, run_id)
    except LedgerDamaged as error:
        hint = f"move the file away and {recovery_hint(lab.ledger)}"
        raise LedgerDamaged(error.message, hint=hint) from error


def _verify_lab(lab: LabFolder, run_id: str | None) -> VerificationReport:
    verified = verify(lab.ledger, run_id)
    findings = [finding.line(lab.ledger) for finding in verified.findings]
    with LedgerReader.open_any(lab.ledger) as reader:
        for name in _runs_not_running(reader, run_id, findings):
            findings += _mirror_findings(lab, reader, name, verified)
        deleted = tuple(reader.deleted_run_ids()) if run_id is None else ()
        findings += _run_folder_findings(lab, reader, run_id, deleted)
    return VerificationReport(
        verified.runs, verified.slots, verified.artifacts, deleted, tuple(findings)
    )


def _runs_not_running(reader: LedgerReader, run_id: str | None, findings: list[str]) -> list[str]:
    """Return the ids of runs that are not running. Add a finding if they cannot be read."""
    try:
        runs = reader.runs() if run_id is None else [reader.run(run_id)]
    except (LabLedgerError, *UNREADABLE) as error:
        findings.append(
            f"{reader.path}: the mirrors were not compared, as the runs cannot be read: {error}"
        )
        return []
    return [run.run_id for run in runs if run.status is not RunStatus.RUNNING]


def _run_folder_findings(
    lab: LabFolder, reader: LedgerReader, run_id: str | None, deleted: Collection[str]
) -> Iterator[str]:
    """Check what the run folders hold beside copies of the ledger's rows."""
    folders = run_folders(lab)
    try:
        run_ids = [run.run_id for run in reader.runs()] if run_id is None else [run_id]
    except (LabLedgerError, *UNREADABLE):
        return
    for name in run_ids:
        yield from find_changed_programs(lab, reader, name)
        yield from find_changed_installations(reader, name)
    if run_id is None:
        yield from find_unknown_runs(lab, folders, {*run_ids, *deleted})


def _mirror_findings(
    lab: LabFolder, reader: LedgerReader, run_id: str, verified: VerificationResult
) -> list[str]:
    folder = lab.run_folder(run_id)
    if not folder.is_dir():
        return []
    damaged = any(finding.run_id in (None, run_id) for finding in verified.findings)
    pieces = None if damaged else verified.mirrors.get(run_id)
    hint = f"`labledger export {run_id}` regenerates it"
    findings = []
    compare_mirrors = partial(mirrors.compare, verified=pieces)
    for compare in (compare_mirrors, _chain_differences, _summary_differences):
        try:
            differences = compare(reader, run_id, folder)
        except (LabLedgerError, *UNREADABLE) as error:
            findings.append(f"{folder}: the ledger's records cannot be read to compare it: {error}")
        else:
            findings += [f"{diff.path}:{diff.line}: {diff.message}; {hint}" for diff in differences]
    return findings


def _chain_differences(reader: LedgerReader, run_id: str, folder: Path) -> list[Difference]:
    difference = mirrors.compare_chain(reader, run_id, folder)
    return [difference] if difference else []


def _summary_differences(reader: LedgerReader, run_id: str, folder: Path) -> list[Difference]:
    path = folder / summary.PATH
    expected = summary.build_summary(reader, run_id)
    try:
        content = read_regular(path)
    except (NotRegularError, OSError) as error:
        return [Difference(path, 0, f"cannot be read: {error}")]
    if content is None or summary.is_summary(content, expected):
        return []
    return [Difference(path, 1, "differs from the ledger")]
