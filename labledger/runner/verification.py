"""`labledger verify`: the ledger against its digests, and each run's mirrors against the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from labledger.export import chain_file, mirrors, summary
from labledger.ledger.reader import LedgerReader
from labledger.ledger.verify import verify
from labledger.records import JsonObject, RunStatus
from labledger.runner.lab import Lab


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and a sentence for everything that is not as it was committed."""

    runs: int
    slots: int
    artifacts: int
    findings: tuple[str, ...]

    def line(self) -> str:
        looked = f"{self.runs} runs, {self.slots} commits, {self.artifacts} artifacts"
        if not self.findings:
            return f"verified: {looked}; nothing was changed, removed or inserted"
        return f"{len(self.findings)} findings in {looked}"

    def as_json(self) -> JsonObject:
        return {
            "runs": self.runs,
            "slots": self.slots,
            "artifacts": self.artifacts,
            "findings": list(self.findings),
        }


def verify_lab(lab: Lab, run_id: str | None) -> Report:
    """Verify one run, or all. Mirrors of runs that are running are left alone."""
    found = verify(lab.ledger, run_id)
    findings = []
    for finding in found.findings:
        slot = "" if finding.schedule_idx is None else f" slot {finding.schedule_idx}"
        findings.append(f"{finding.run_id or lab.ledger}{slot}: {finding.message}")
    with LedgerReader.open(lab.ledger) as reader:
        runs = reader.runs() if run_id is None else [reader.run(run_id)]
        for run in runs:
            if run.status is not RunStatus.RUNNING:
                findings += _mirror_findings(lab, reader, run.run_id)
    return Report(found.runs, found.slots, found.artifacts, tuple(findings))


def _mirror_findings(lab: Lab, reader: LedgerReader, run_id: str) -> list[str]:
    folder = lab.run_folder(run_id)
    if not folder.is_dir():
        return []
    mend = f"`labledger export {run_id}` writes it anew"
    chain = chain_file.compare_chain(reader, run_id, folder)
    differences = mirrors.compare(reader, run_id, folder) + ([chain] if chain else [])
    findings = [f"{found.path}:{found.line}: {found.message}; {mend}" for found in differences]
    path = folder / summary.PATH
    expected = summary.build_summary(reader, run_id)
    if path.is_file() and not summary.is_summary(path.read_bytes(), expected):
        findings.append(f"{path}: differs from what the ledger says; {mend}")
    return findings
