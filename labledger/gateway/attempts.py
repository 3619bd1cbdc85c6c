"""All open attempts of a gateway, and the accounts that they share.

Opening and closing are idempotent and durable: an attempt is on the list before its socket listens,
and when it is closed, the list has what it used. A gateway that starts again opens what is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from labledger.errors import LabLedgerError
from labledger.gateway.attempt import Accounts, Attempt, BadGrant, read_grant
from labledger.gateway.caps import Account
from labledger.gateway.journal import JournalBroken
from labledger.gateway.open_attempts import OpenAttempts, Variant
from labledger.gateway.status import CallTotals, VariantTotals
from labledger.gateway.upstream import Upstream
from labledger.records.model_grants import GRANT, CapShare, ShareUse

_log = logging.getLogger("labledger.gateway")


class Attempts:
    """The open attempts. For one event loop."""

    def __init__(self, listed: OpenAttempts, upstream: Upstream) -> None:
        self._listed, self._upstream = listed, upstream
        self._open: dict[Path, Attempt] = {}
        self._locks: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._variants: dict[Variant, Account] = {}
        self._runs: dict[str, Account] = {}
        for (run_id, variant_id), closed in listed.closed.items():
            variant = self._variant(run_id, variant_id)
            variant.totals = closed.totals
            run = self._run(run_id)
            run.totals = run.totals.plus(closed.totals)
        self._problems: list[str] = []

    def _variant(self, run_id: str, variant_id: str) -> Account:
        return self._variants.setdefault((run_id, variant_id), Account("variant"))

    def _run(self, run_id: str) -> Account:
        return self._runs.setdefault(run_id, Account("run"))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def runs(self) -> set[str]:
        """The runs that have open attempts."""
        return {attempt.grant.run_id for attempt in self._open.values()}

    async def take_up(self) -> None:
        """Open again what was open when the gateway ended."""
        for folder in list(self._listed.folders):
            try:
                await self._serve(folder)
            except (BadGrant, OSError, ValueError) as error:
                if (folder / GRANT).exists():
                    self._problems.append(f"could not open {folder} again: {error}")
                else:
                    # Trials are removed once their calls are committed.
                    self._listed.note_lost(folder)

    async def open(self, folder: Path) -> None:
        """Serve an attempt by its grant, also if that has changed. Raises `LabLedgerError`."""
        async with self._locked(folder):
            try:
                grant = read_grant(folder)
                if folder in self._open:
                    if self._open[folder].grant == grant:
                        return
                    await self._close(folder)
                before = self._listed.note_opened(folder, (grant.run_id, grant.variant_id))
                self._count_closed(before, -1)
                try:
                    await self._serve(folder)
                except BaseException:
                    self._listed.note_closed(folder, before[1] if before else CallTotals())
                    self._count_closed(before, 1)
                    raise
            except BadGrant as error:
                raise LabLedgerError(f"the grant {folder / GRANT} {error}") from None
            except (OSError, ValueError) as error:
                raise LabLedgerError(
                    f"could not serve models to the trial in {folder}: {error}"
                ) from None

    def _count_closed(self, closed: tuple[Variant, CallTotals] | None, sign: int) -> None:
        """Add what a closed attempt used to its accounts.

        With `sign` -1 subtract it: it is open again, and its journal counts it.
        """
        if closed is None:
            return
        for account in (self._variant(*closed[0]), self._run(closed[0][0])):
            account.totals = account.totals.plus(closed[1], sign)

    async def _serve(self, folder: Path) -> None:
        grant = read_grant(folder)
        accounts = Accounts(
            Account("trial"),
            self._variant(grant.run_id, grant.variant_id),
            self._run(grant.run_id),
        )
        if grant.shared:
            accounts.variant.await_share()
            accounts.run.await_share()
        attempt = Attempt(folder, grant, accounts, self._upstream)
        await attempt.serve()
        self._open[folder] = attempt

    def take_shares(self, run_id: str, shares: Iterable[CapShare]) -> list[ShareUse]:
        """Go by shares in the caps of a run. Return what became of them."""
        uses = []
        for share in shares:
            variant = share.variant_id
            account = self._run(run_id) if variant is None else self._variant(run_id, variant)
            uses.append(account.take_share(share))
        return uses

    async def close(self, folder: Path) -> None:
        """Close an attempt; its journal is then complete and durable. Raises `LabLedgerError`."""
        async with self._locked(folder):
            if folder in self._open:
                await self._close(folder)

    async def _close(self, folder: Path) -> None:
        attempt = self._open.pop(folder)
        try:
            await attempt.close()
        except JournalBroken as error:
            self._problems.append(error.message)
        try:
            self._listed.note_closed(folder, attempt.accounts.trial.totals)
        except OSError as error:
            raise LabLedgerError(
                f"could not note that the trial in {folder} is closed: {error}"
            ) from None

    async def leave_all(self) -> None:
        """End what is under way, and leave the attempts open on the list."""
        for attempt in list(self._open.values()):
            try:
                await attempt.close()
            except JournalBroken as error:
                _log.error("%s", error.message)
        self._open.clear()

    @asynccontextmanager
    async def _locked(self, folder: Path) -> AsyncIterator[None]:
        """Let one task at a time open or close an attempt."""
        lock = self._locks[folder]
        async with lock:
            yield
        if not lock.locked():
            self._locks.pop(folder, None)

    def variants(self) -> tuple[VariantTotals, ...]:
        """Return what each variant used, with its open attempts."""
        opened: defaultdict[Variant, int] = defaultdict(int)
        for attempt in self._open.values():
            opened[attempt.grant.run_id, attempt.grant.variant_id] += 1
        return tuple(
            VariantTotals(*variant, opened[variant], account.totals)
            for variant, account in sorted(self._variants.items())
        )

    def problems(self) -> tuple[str, ...]:
        """Return what does not work."""
        now = (attempt.problem for attempt in self._open.values())
        return (*self._problems[-20:], *(problem for problem in now if problem))
