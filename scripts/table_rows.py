"""Generate labledger/ledger/database/table_rows.json from the tables that tables.py declares.

    python scripts/table_rows.py            write the file anew
    python scripts/table_rows.py --print    print it instead

A test fails if the file is not what this prints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sqlalchemy import Table

from labledger.ledger.database.table_rows import SLOT_ROWS
from labledger.ledger.database.tables import metadata

TARGET = Path(__file__).parents[1] / "labledger/ledger/database/table_rows.json"


def main() -> None:
    lines = (f'  "{name}": {json.dumps(facts(table))}' for name, table in metadata.tables.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(text)
    else:
        TARGET.write_text(text, "utf-8")


def facts(table: Table) -> dict[str, object]:
    columns = [
        column.name
        for column in table.columns
        if column.computed is None
        and column.name != "row_digest"
        and "numbered_by_sqlite" not in column.info
    ]
    key = [column.name for column in table.primary_key.columns]
    shared = {"key": key, "digested": "row_digest" in table.columns}
    return shared if table.name in SLOT_ROWS else {"columns": columns} | shared


if __name__ == "__main__":
    main()
