"""Generate labledger/ledger/database/table_rows.py from the tables declared in tables.py beside it.

    python scripts/table_rows.py            write the file anew
    python scripts/table_rows.py --print    print it instead

A test fails if the file is not what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import REAL, Column, Integer, LargeBinary, Table, Text

from labledger.ledger.database.tables import AnyValue, metadata

TARGET = Path(__file__).parents[1] / "labledger/ledger/database/table_rows.py"

HEADER = '''\
"""The columns and keys of the ledger's tables, without SQLAlchemy, which takes long to import.

Generated from `tables.py` by `python scripts/table_rows.py`: do not edit. Columns are in the order
of the table, without those that SQLite fills in and without `row_digest`. `statements` makes
SQL of them.
"""

from __future__ import annotations

from typing import NamedTuple
'''

CLASSES = {
    "slot_commit": "SlotCommitRow",
    "trial": "TrialRow",
    "attempt": "AttemptRow",
    "metric": "MetricRow",
    "event": "EventRow",
    "prediction": "PredictionRow",
    "score": "ScoreRow",
    "evidence_record": "EvidenceRow",
    "model_call": "ModelCallRow",
}
"""What a commit publishes: tables whose rows are passed on as values with names and types."""

TYPES = {
    Integer: "int",
    Text: "str",
    REAL: "float",
    LargeBinary: "bytes",
    AnyValue: "float | int | str",
}


def main() -> None:
    text = "\n".join(module())
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(text)
    else:
        TARGET.write_text(text, "utf-8")


def module() -> Iterator[str]:
    yield HEADER
    for table, name in CLASSES.items():
        yield f"\nclass {name}(NamedTuple):"
        yield f'    """A row of `{table}`."""\n'
        yield from (f"    {each.name}: {python_type(each)}" for each in written(table))
        yield ""
    yield "\nCOLUMNS: dict[str, tuple[str, ...]] = {"
    for table in metadata.tables:
        columns = [each.name for each in written(table)]
        yield from entry(table, f"{CLASSES[table]}._fields" if table in CLASSES else columns)
    yield '}\n"""The columns that a statement writes, by table."""\n'
    yield "SLOT_TABLES = ("
    yield from (f"    *{group}," for group in groups([f'"{name}"' for name in CLASSES]))
    yield ')\n"""Tables of what a commit publishes, in the order in which it is written."""\n'
    yield "KEYS: dict[str, tuple[str, ...]] = {"
    for name, table in metadata.tables.items():
        yield from entry(name, [each.name for each in table.primary_key.columns])
    yield '}\n"""The columns of the primary key, by table."""\n'
    yield "DIGESTED = ("
    names = [f'"{name}"' for name, table in metadata.tables.items() if digested(table)]
    yield from (f"    *{group}," for group in groups(names))
    yield ')\n"""Tables with a column `row_digest`: those whose rows change or go."""\n'


def written(table: str) -> list[Column[object]]:
    return [
        column
        for column in metadata.tables[table].columns
        if column.computed is None
        and column.name != "row_digest"
        and "numbered_by_sqlite" not in column.info
    ]


def digested(table: Table) -> bool:
    return "row_digest" in table.columns


def python_type(column: Column[object]) -> str:
    return TYPES[type(column.type)] + (" | None" if column.nullable else "")


def entry(table: str, value: str | list[str]) -> Iterator[str]:
    """A line of a dictionary, or several, as the formatter would have it."""
    if isinstance(value, str):
        yield f'    "{table}": {value},'
        return
    words = [f'"{name}"' for name in value]
    line = f'    "{table}": ({", ".join(words)}{"," if len(words) == 1 else ""}),'
    if len(line) <= 100:
        yield line
        return
    yield f'    "{table}": ('
    yield from (f"        *{group}," for group in groups(words))
    yield "    ),"


def groups(words: list[str]) -> Iterator[str]:
    """Tuples of as many of the words as fit on a line."""
    while words:
        size = len(words)
        while len(f"        *({', '.join(words[:size])}),") > 100:
            size -= 1
        yield f"({', '.join(words[:size])}{',' if size == 1 else ''})"
        words = words[size:]


if __name__ == "__main__":
    main()
