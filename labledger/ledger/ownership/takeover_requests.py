"""Who wants a run that another coordinator owns: a durable mark, inside the writer's transactions.

A claim lasts a few seconds and its asker renews it, so that one whose asker is gone is soon void.
"""

from __future__ import annotations

from collections.abc import Callable

from labledger import clock
from labledger.errors import LeaseHeld
from labledger.ledger.commit import statements
from labledger.ledger.database.connection import Connection
from labledger.ledger.database.model import Claim, Owner


def live(
    connection: Connection, run_no: int, now: str, is_dead: Callable[[Owner], bool]
) -> Claim | None:
    """The claim on a run; None where there is none, or its asker is certainly or probably gone."""
    row = connection.exec_driver_sql(statements.SELECT_CLAIM, (run_no,)).first()
    if row is None:
        return None
    host, pid, token, *times = row
    claim = Claim(Owner(host, pid, token), *times)
    return claim if claim.expires_at > now and not is_dead(claim.owner) else None


def refuse_other(claim: Claim | None, owner: Owner, run_id: str) -> None:
    """Raise `LeaseHeld` where somebody else was there first."""
    if claim is not None and claim.owner != owner:
        raise LeaseHeld(
            f"run {run_id} is wanted by process {claim.owner.pid} on {claim.owner.machine} since "
            f"{claim.claimed_at}, which takes it over next",
            hint=f"stop that process, or leave the run to it: `labledger status {run_id}`",
        )


def keep(
    connection: Connection, run_no: int, claim: Claim | None, owner: Owner, now: str, lasts_s: float
) -> None:
    """Make the claim of `owner`, or have it last again where half of its time is over."""
    if claim is not None and claim.expires_at > clock.later(now, lasts_s / 2):
        return
    since = now if claim is None else claim.claimed_at
    until = clock.later(now, lasts_s)
    connection.exec_driver_sql(
        statements.UPSERT_CLAIM,
        (run_no, owner.host, owner.pid, owner.process_token, since, until),
    )


def withdraw(connection: Connection, run_no: int, owner: Owner) -> None:
    """End the claim of `owner`, where it has one."""
    connection.exec_driver_sql(
        statements.DELETE_CLAIM, (run_no, owner.host, owner.pid, owner.process_token)
    )


def end(connection: Connection, run_no: int) -> None:
    """End whatever claim there is: the run has a new owner."""
    connection.exec_driver_sql("DELETE FROM claim WHERE run_no = ?", (run_no,))
