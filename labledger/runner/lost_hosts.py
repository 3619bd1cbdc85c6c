"""What losing a host of a cluster means for a run.

That a host is lost is a row of the ledger (`ledger.run_rows`), which refuses every later result of
that host. The coordinator reads these declarations with each renewal of its lease, and tells the
executor: each open attempt of the host ends with `HostLost`, once the host certainly starts nothing
any more. Such an attempt is stored as an `infra_error`, and the retry policy decides as for any
other. What was placed on the host and not journaled yet gets another host.
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
    """The hosts of a run that people declare lost, as the ledger has them now."""

    reader: LedgerReader
    run_id: str
    executor: TrialExecutor
    _known: set[str] = field(default_factory=set)

    def report_new(self) -> Collection[str]:
        """Tell the executor of the hosts that were declared lost since the last call.

        Return every lost host.
        """
        for lost in self.reader.lost_hosts(self.run_id):
            if lost.host not in self._known:
                self._known.add(lost.host)
                because = (
                    f"host {lost.host} was declared lost at {lost.declared_at}: {lost.because}"
                )
                self.executor.lose_host(lost.host, because)
        return self._known

    def without_lost_host(
        self, specs: Iterable[AttemptSpec], journaled: Collection[tuple[int, int]]
    ) -> list[AttemptSpec]:
        """Return attempts, without their host if it is lost and they were not `journaled` there.

        `journaled` are slots and numbers of attempts.
        """
        lost = self.report_new()
        return [
            spec.on_host("") if spec.host in lost and spec.key not in journaled else spec
            for spec in specs
        ]


def lost_attempt_result(spec: AttemptSpec, message: str) -> AttemptResult:
    """Return the result of an attempt that will never end: its host was declared lost."""
    return infra_error_result(spec, clock.utc_now(), Reason.HOST_LOST, message)
