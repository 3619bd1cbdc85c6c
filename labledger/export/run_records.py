"""Write a stored run's records again: mirrors, chain and summary, or tables for other tools.

In: a reader and a target. Out: files that appear whole or not at all, or bytes on a stream. As
`jsonl` they are byte for byte what the run wrote. Used by the library's `Ledger.export`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from labledger.errors import InvalidInput, Parameter, Problem
from labledger.export import mirrors, run_folder, summary, tables
from labledger.ledger.read import export_tables
from labledger.ledger.reader import LedgerReader
from labledger.records.identity import RUN_SEPARATOR
from labledger.storage.durable_files import replace_output


def run_ids_of(reader: LedgerReader, name: str, form: str) -> tuple[str, ...]:
    """Return the run, or the several runs ``RUN1+RUN2``, whose records are to be written.

    Raises `RunNotFound`, and `InvalidInput` for several runs as `jsonl`, or one named twice.
    """
    run_ids = tuple(reader.run(run_id).run_id for run_id in name.split(RUN_SEPARATOR))
    if len(set(run_ids)) < len(run_ids):
        raise InvalidInput("the export", [Problem(name, "a run is named twice")])
    if len(run_ids) > 1 and form == "jsonl":
        message = "records as jsonl are those of one run"
        hint = "export each run, or several as tables: `format='csv'` or `format='parquet'`"
        raise InvalidInput("the export", [Problem(name, message, hint=hint)])
    return run_ids


def write_records(
    reader: LedgerReader,
    run_ids: Sequence[str],
    folder: Path | None,
    what: str,
    out: Path | None,
    form: str,
) -> list[Path]:
    """Write one kind of record, or `all`, to files, and return them.

    `folder` is the run folder, in which they are written if `out` is None; several runs have none.
    Raises `InvalidInput`, and `ExtraMissing` if Parquet cannot be written.
    """
    if folder is None and out is None:
        message = "several runs have no run folder in common; expected a file or a folder"
        raise InvalidInput("the export", [Problem(Parameter("out"), message)])
    folder = folder or Path()
    if form != "jsonl":
        return _write_tables(reader, run_ids, what, out, folder / tables.FOLDER, form)
    [run_id] = run_ids
    if what == "all":
        folder = out or folder
        files = mirrors.rebuild_all(reader, run_id, folder)
        run_folder.write_chain(reader, run_id, folder / run_folder.CHAIN_PATH)
        run_summary = summary.build_summary(reader, run_id)
        return [*files, folder / run_folder.CHAIN_PATH, summary.write_summary(folder, run_summary)]
    relative = _record_path(what, "all")
    path = out or folder / relative
    with replace_output(path) as handle:
        stream_records(reader, run_ids, what, handle, form)
    return [path]


def stream_records(
    reader: LedgerReader, run_ids: Sequence[str], what: str, stream: BinaryIO, form: str
) -> None:
    """Write one kind of record, the chain or the summary to a stream. Raises as `write_records`."""
    if form != "jsonl":
        _check_table_and_format(what, form)
        tables.write_table(reader, run_ids, what, form, stream)
        return
    [run_id] = run_ids
    _record_path(what)
    if what == "summary":
        stream.write(summary.summary_bytes(summary.build_summary(reader, run_id)))
    elif what == "chain":
        run_folder.write_chain(reader, run_id, stream)
    else:
        mirrors.rebuild(reader, run_id, what, stream)


def _write_tables(
    reader: LedgerReader,
    run_ids: Sequence[str],
    what: str,
    out: Path | None,
    folder: Path,
    form: str,
) -> list[Path]:
    if what == "all":
        tables.check_format(form)
        return tables.write_tables(reader, run_ids, form, out or folder)
    _check_table_and_format(what, form, "all")
    path = out or folder / f"{what}.{form}"
    tables.write_table(reader, run_ids, what, form, path)
    return [path]


def _record_path(what: str, *also: str) -> Path:
    """Return a kind's path in the run folder. `also` are other valid values, for the message."""
    known = {**mirrors.PATHS, "summary": summary.PATH, "chain": run_folder.CHAIN_PATH}
    if what not in known:
        raise InvalidInput("the export", [_not_one_of("", what, [*known, *also])])
    return known[what]


def _check_table_and_format(what: str, form: str, *also: str) -> None:
    tables.check_format(form)
    if what not in export_tables.TABLES:
        raise InvalidInput(
            "the export", [_not_one_of(f" as {form},", what, [*export_tables.TABLES, *also])]
        )


def _not_one_of(form: str, given: str, known: Iterable[str]) -> Problem:
    message = f"found {given!r};{form} expected one of {', '.join(known)}"
    return Problem(Parameter("what"), message)
