"""Which receivers the user allows with a lab folder, from its settings and its ledger."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from dataclasses import replace

from labledger.errors import LabLedgerError
from labledger.execution.receivers import Receiver
from labledger.files.lab_folder import LabFolder
from labledger.files.lab_trust import permission_to_ask_for
from labledger.files.permissions import Permission
from labledger.ledger.notifications import stored_receivers
from labledger.text import escape_line

_MAX_LISTED = 20


def permissions_of_lab(lab: LabFolder) -> tuple[Permission, ...]:
    """Return the permission that makes a lab folder trusted; None if it is already trusted.

    The permission's sentence names every receiver of the lab. Raises `LabLedgerError` if no
    permission can make the folder trusted.
    """
    needed = permission_to_ask_for(lab)
    if needed is None:
        return ()
    named = list(dict.fromkeys(_named_receivers(lab)))
    more = [f"and {len(named) - _MAX_LISTED} more"] if len(named) > _MAX_LISTED else []
    listed = "; ".join([*named[:_MAX_LISTED], *more]) or "none yet"
    return (replace(needed, sentence=f"{needed.sentence} (receivers: {listed})"),)


def _named_receivers(lab: LabFolder) -> Iterator[str]:
    """Yield each receiver of the settings and of the ledger, as messages show it."""
    try:
        # Anything else, such as a FIFO, is an error when the lab is used.
        if stat.S_ISREG(lab.settings.stat().st_mode):
            for setting in lab.read_settings().get("notify", ()):
                yield _description(Receiver.of_setting(setting))
    except FileNotFoundError:
        pass
    except (LabLedgerError, OSError):
        yield "settings that cannot be read"
    if not lab.ledger.exists():
        return
    try:
        for stored in sorted(stored_receivers(lab.ledger)):
            yield _description(Receiver.of_stored(stored))
    except (LabLedgerError, ValueError, KeyError, TypeError):
        yield "a ledger that cannot be read"


def _description(receiver: Receiver) -> str:
    """Return a command with its words, or the part of a URL that messages show."""
    if receiver.is_webhook:
        return f"the webhook {receiver.label}"
    return f"the command {escape_line(shlex.join(receiver.words))}"
