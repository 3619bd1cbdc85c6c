"""What the shell completes: ids of runs, and names of views."""

from __future__ import annotations

import typer

_MOST = 200
_RUNS_SQL = (
    "SELECT run_id FROM ("
    "SELECT run_id, created_at FROM runs UNION "
    "SELECT run_id || '.g' || generation, created_at FROM gradings WHERE generation > 1"
    ") WHERE substr(run_id, 1, length(:typed)) = :typed ORDER BY created_at DESC LIMIT :most"
)


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs of the lab whose ids begin with what is typed, the newest first."""
    from labledger.api.ledger import open_ledger
    from labledger.errors import LabLedgerError
    from labledger.text.terminal_text import escape_line

    try:
        with open_ledger(lab_dir=ctx.params.get("lab_dir")) as ledger:
            found = ledger.rows(_RUNS_SQL, {"typed": incomplete, "most": _MOST})[1]
            # What a terminal would not show as it is cannot be typed either.
            return [run_id for (run_id,) in found if escape_line(run_id) == run_id]
    except LabLedgerError:
        return []


def views(incomplete: str) -> list[str]:
    """Views whose names begin with what is typed."""
    from labledger.ledger.database.views_and_triggers import VIEWS

    return [name for name in VIEWS if name.startswith(incomplete)]
