"""The client of the gateway: starts it where none runs, and tells it which attempts are open.

It is synchronous and needs no HTTP library but Python's own. A gateway serves one lab folder on one
host, and goes on without its clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.gateway.status import GatewayStatus, Totals
from labledger.records.model_providers import KeySource

PROTOCOL = 1
"""The version of what clients and gateways say to each other."""


class GatewayUnavailable(LabLedgerError):
    """The gateway of a lab folder does not answer, or could not be started."""


class GatewayClient:
    """A client of the gateway whose files are in `folder`, such as `LAB/gateway`. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ensure(self, run_id: str, keys: Mapping[KeySource, str]) -> None:
        """Start the gateway unless one runs, and hand it the keys of a run.

        Call it before a run's first attempt, and then every few seconds while the run goes on: a
        gateway that died is started again and takes up the open attempts. It is cheap where
        nothing has changed. Raises `GatewayUnavailable`, and `ExtraMissing` without aiohttp.
        """
        raise NotImplementedError

    def open(self, trial: Path) -> None:
        """Serve the attempt in a trial's folder by its grant, which is durable by now.

        When it returns, the gateway listens at `SOCKET`. Opening an open attempt changes nothing.
        Raises `LabLedgerError` if the grant cannot be used, `GatewayUnavailable`.
        """
        raise NotImplementedError

    def close(self, trial: Path) -> Totals:
        """Admit no more calls of an attempt, end those under way, and return what it used.

        When it returns, the attempt's journal is complete and durable. An attempt that is not open
        is no error, and has used what its journal says. Raises `GatewayUnavailable`.
        """
        raise NotImplementedError

    def status(self) -> GatewayStatus | None:
        """Return what the gateway says of itself; None if none runs. Raises `LabLedgerError`."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the gateway, as soon as its calls have ended; nothing if none runs."""
        raise NotImplementedError
