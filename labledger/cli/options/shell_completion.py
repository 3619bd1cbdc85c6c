"""What the shell completes: the ids of runs and the names of views."""

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
    """Return the ids that begin with what was typed, the newest run first."""
    from labledger.api import LabLedgerError, open_ledger
    from labledger.text.terminal_text import escape_line

    try:
        with open_ledger(lab_dir=ctx.params.get("lab_dir")) as ledger:
            rows = ledger.rows(_RUNS_SQL, {"typed": incomplete, "most": _MOST})[1]
            # A name that a terminal cannot show as it is cannot be typed either.
            return [run_id for (run_id,) in rows if escape_line(run_id) == run_id]
    except LabLedgerError:
        return []


def views(incomplete: str) -> list[str]:
    """Return the views whose names begin with what was typed."""
    from labledger.api import view_names

    return [name for name in view_names() if name.startswith(incomplete)]
