"""End the attempts on hosts that were declared lost for a run.

A declaration is a row of the ledger (`ledger.run_rows`), which refuses later results of that host.
The coordinator tells the executor of new rows after each renewal of its lease. The host's open
attempts become `infra_error` once the host can start nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from labledger import clock
from labledger.execution.executor import TrialExecutor
from labledger.ledger.reader import LedgerReader
from labledger.records.attempt_result import AttemptResult
from labledger.records.outcomes import Reason
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.collect import infra_error_result


@dataclass(slots=True)
class LostHosts:
    """The hosts of a run that were declared lost, as the ledger has them now."""

    reader: LedgerReader
    run_id: str
    executor: TrialExecutor
    _reported: set[str] = field(default_factory=set)

    def report_new(self) -> Collection[str]:
        """Tell the executor of the hosts that were declared lost since the last call.

        Return every lost host.
        """
        for lost in self.reader.lost_hosts(self.run_id):
            if lost.host not in self._reported:
                self._reported.add(lost.host)
                because = (
                    f"host {lost.host} was declared lost at {lost.declared_at}: {lost.because}"
                )
                self.executor.lose_host(lost.host, because)
        return self._reported

    def without_lost_host(
        self, specs: Iterable[AttemptSpec], journaled: Collection[tuple[int, int]]
    ) -> list[AttemptSpec]:
        """Return attempts. Remove a lost host from attempts that are not in `journaled`.

        `journaled` has pairs of a slot and the number of an attempt.
        """
        lost = self.report_new()
        return [
            spec.on_host("") if spec.host in lost and spec.key not in journaled else spec
            for spec in specs
        ]


def lost_attempt_result(spec: AttemptSpec, message: str) -> AttemptResult:
    """Return the result of an attempt that will never end: its host was declared lost."""
    return infra_error_result(spec.evidence, clock.utc_now(), Reason.HOST_LOST, message)
