"""The stored trials of the run that a regrading grades again, read slot by slot from the ledger.

Used by the slot queue of a regrading. Nothing is written.
"""

from __future__ import annotations

from labledger.ledger.reader import LedgerReader
from labledger.records.artifacts import digest_of
from labledger.records.identity import TrialIds
from labledger.records.slot_records import SlotRecords
from labledger.trial.contract import StoredTrial


class StoredTrials:
    """Reader of the committed trials of one run."""

    def __init__(self, reader: LedgerReader, run_id: str) -> None:
        self._reader = reader
        self._run_id = run_id
        self._last: SlotRecords | None = None

    def reason_not_stored(self, schedule_idx: int) -> str | None:
        """Return why a slot's trial was never run, or None if it was run."""
        records = self._records(schedule_idx)
        return None if records.trials else records.reason or records.status.value

    def trial(self, schedule_idx: int) -> StoredTrial:
        """Return a stored trial: its records, and the small artifacts of its last attempt."""
        records = self._records(schedule_idx)
        (record,) = records.objects("trials")
        evidence = records.objects("evidence")[-1]
        references = evidence["evidence"].values()
        digests = [digest_of(reference) for reference in references]
        contents = self._reader.small_artifacts(digests)
        return StoredTrial(TrialIds(**record["ids"]), record, evidence, contents)

    def _records(self, schedule_idx: int) -> SlotRecords:
        if self._last is None or self._last.schedule_idx != schedule_idx:
            self._last = next(
                self._reader.slot_records(self._run_id, schedule_idx, schedule_idx + 1)
            )
        return self._last
