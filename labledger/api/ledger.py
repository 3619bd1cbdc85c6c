"""Answers from a ledger. What compares and reports is loaded when first asked for."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self

from labledger.errors import InvalidInput, Problem
from labledger.export import data_frames, mirrors, run_folder, summary, tables
from labledger.ledger.database.model import Grading, RunInfo, Spent, VariantCounts
from labledger.ledger.query import Params, ViewInfo, require_names, statement
from labledger.ledger.query import query as ask
from labledger.ledger.query import views as list_views
from labledger.ledger.read import export_tables
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject
from labledger.records.artifacts import digest_of
from labledger.records.slot_records import RECORD_KINDS
from labledger.storage.durable_files import replace_output
from labledger.storage.lab_folder import LabFolder

if TYPE_CHECKING:
    from labledger.compare.comparison_document import Comparison
    from labledger.compare.options import CompareOptions
    from labledger.report.options import ReportOptions


def open_ledger(path: str | Path | None = None, *, lab_dir: Path | str | None = None) -> Ledger:
    """Open a ledger to read: the file or lab folder at `path`, or that of the lab folder found.

    Reads while runs write. Raises `LedgerMissing`, `LedgerOutdated` or `LedgerTooNew`.
    """
    if path is None or Path(path).is_dir():
        lab = LabFolder.find(lab_dir if path is None else Path(path))
        return Ledger(lab, lab.ledger)
    return Ledger(LabFolder(Path(path).absolute().parent), Path(path))


class Ledger:
    """Answers from a ledger; it cannot write. Close it, or use it in a `with` statement."""

    def __init__(self, lab: LabFolder, path: Path) -> None:
        self._lab = lab
        self._path = path
        self._reader = LedgerReader.open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()

    def runs(self) -> list[RunInfo]:
        """Every run, the newest first."""
        return self._reader.runs()

    def run(self, run_id: str) -> RunInfo:
        """One run. Raises `RunNotFound`."""
        return self._reader.run(run_id)

    def counts(self, run_id: str) -> list[VariantCounts]:
        """Slots of each variant by status and verdict."""
        return self._reader.counts(run_id)

    def gradings(self, run_id: str) -> list[Grading]:
        """Every grading of a run, or of the run that a regrading judges, the oldest first."""
        return self._reader.gradings(run_id)

    def begun(self, run_id: str) -> int:
        """How many slots were dispatched or finished and are not committed yet."""
        start = self._reader.run(run_id).next_schedule_idx
        staged = self._reader.staged(run_id)
        return len(self._reader.last_dispatches(run_id, start).keys() | staged.keys())

    def spent(self, run_id: str) -> dict[str, Spent]:
        """What a run's trials spent so far, by kind, committed or not; nothing of a regrading."""
        regrades = self._reader.run(run_id).regrades is not None
        return {} if regrades else self._reader.spent_so_far(run_id)

    def summary(self, run_id: str) -> JsonObject:
        """The `benchmark_summary_v1` of what is committed so far."""
        return summary.build_summary(self._reader, run_id)

    def slot(self, run_id: str, schedule_idx: int) -> JsonObject:
        """Everything about one slot: its place, its status, and its records by kind.

        `status` is None where the slot is not committed yet. Raises `RunNotFound` or
        `SlotNotFound`.
        """
        slot = self._reader.slot(run_id, schedule_idx)
        found = next(self._reader.slot_records(run_id, schedule_idx, schedule_idx + 1), None)
        return {
            "slot": {"run_id": run_id, **asdict(slot)},
            "status": found.status.value if found else None,
            "reason": found.reason if found else None,
            **{kind: found.objects(kind) if found else [] for kind in RECORD_KINDS},
        }

    def artifact(self, reference: str) -> bytes:
        """The content behind an ``artifact://sha256/…`` reference, its digest checked."""
        return self._reader.artifact(digest_of(reference))

    def query(
        self, sql: str, params: Params = (), generation: int | None = None
    ) -> list[dict[str, Any]]:
        """The rows of one SELECT, or of a view, as dictionaries. `params` fill `:name` or `?`.

        With a `generation`, the views take for every run its newest complete grading up to that
        one; so with the other methods that ask. Raises `QueryFailed`.
        """
        columns, rows = self.rows(sql, params, generation)
        with closing(rows):
            require_names(columns)
            return [dict(zip(columns, row, strict=True)) for row in rows]

    def rows(
        self, sql: str, params: Params = (), generation: int | None = None
    ) -> tuple[tuple[str, ...], Generator[tuple[Any, ...]]]:
        """The columns and the rows, streamed, of one SELECT, or of the view that `sql` names.

        Raises `QueryFailed`.
        """
        return ask(self._path, statement(sql), params, generation, views_only=True)

    def frame(
        self,
        view_or_sql: str,
        params: Params = (),
        engine: Literal["pandas", "polars"] = "pandas",
        *,
        generation: int | None = None,
    ) -> Any:
        """A view, or the answer to one SELECT, as a DataFrame of pandas or polars.

        Integers are `Int64` in pandas, which has nulls; a column that mixes numbers and text is
        text. Raises `ExtraMissing` and `QueryFailed`.
        """
        columns, rows = ask(self._path, statement(view_or_sql), params, generation, views_only=True)
        with closing(rows):
            return data_frames.frame(columns, rows, engine)

    def parquet(
        self,
        view_or_sql: str,
        out: Path,
        params: Params = (),
        generation: int | None = None,
    ) -> int:
        """Write a view, or the answer to one SELECT, to a Parquet file; the number of its rows.

        Streamed; the file appears whole or not at all. Raises `ExtraMissing` and `QueryFailed`.
        """
        data_frames.require_parquet()
        columns, rows = ask(self._path, statement(view_or_sql), params, generation, views_only=True)
        with closing(rows), replace_output(out) as handle:
            return data_frames.write_parquet(columns, rows, handle, out.parent)

    def views(self) -> list[ViewInfo]:
        """The documented views and their columns."""
        return list_views(self._path)

    def report(self, run_id: str, options: ReportOptions | None = None) -> JsonObject:
        """The facts of a run's report: the `report_v1` of what is committed so far.

        A run is what counts of it; ``RUN.g1``, ``RUN.g2``, … are its gradings. Raises
        `RunNotFound` or `InvalidInput`.
        """
        from labledger.report.facts import collect
        from labledger.report.options import ReportOptions

        return collect(self._reader, run_id, options or ReportOptions())

    def rendered_report(
        self, run_id: str, form: str = "html", options: ReportOptions | None = None
    ) -> bytes:
        """The report as ``html``, ``markdown`` or ``json``. Raises `ExtraMissing` for the page."""
        from labledger.report.options import ReportOptions
        from labledger.report.rendering import render

        return render(self._reader, run_id, form, options or ReportOptions())

    def compare(self, *sides: str, options: CompareOptions | None = None) -> Comparison:
        """Compare variants or runs, paired by task and replication.

        `sides` are the words of `labledger compare`: a run; a run and two variants; or two of
        ``RUN`` or ``RUN:VARIANT``. A run is what counts of it; ``RUN.g1``, ``RUN.g2``, … are its
        gradings. Raises `ExtraMissing`, `InvalidInput` or `RunNotFound`.
        """
        from labledger.compare.compare import compare
        from labledger.compare.options import CompareOptions

        return compare(self._reader, sides, options or CompareOptions())

    def export(
        self,
        run_id: str,
        what: str = "all",
        out: Path | None = None,
        *,
        format: str = "jsonl",  # noqa: A002
    ) -> list[Path]:
        """Write a run's records anew, and return the files written.

        As `jsonl` they are the mirrors (and the summary), byte for byte as the run wrote them,
        and without `out` the run folder's own. As `csv` or `parquet` they are tables with fixed
        columns, and without `out` in the run folder's `tables`. With `what="all"`, `out` is a
        folder. Raises `ExtraMissing` where Parquet cannot be written.
        """
        self._reader.run(run_id)
        if format != "jsonl":
            return self._export_tables(run_id, what, out, format)
        if what == "all":
            folder = out or self._lab.run_folder(run_id)
            files = mirrors.rebuild_all(self._reader, run_id, folder)
            run_folder.write_chain(self._reader, run_id, folder / run_folder.CHAIN_PATH)
            files.append(folder / run_folder.CHAIN_PATH)
            return [*files, summary.write_summary(folder, self.summary(run_id))]
        relative = _mirror_path(what, "all")
        path = out or self._lab.run_folder(run_id) / relative
        with replace_output(path) as handle:
            self.export_to(run_id, what, handle)
        return [path]

    def _export_tables(self, run_id: str, what: str, out: Path | None, form: str) -> list[Path]:
        folder = self._lab.run_folder(run_id) / tables.FOLDER
        if what == "all":
            tables.check_format(form)
            return tables.write_tables(self._reader, run_id, form, out or folder)
        _check_table(what, form, "all")
        path = out or folder / f"{what}.{form}"
        tables.write_table(self._reader, run_id, what, form, path)
        return [path]

    def export_to(
        self,
        run_id: str,
        what: str,
        stream: BinaryIO,
        *,
        format: str = "jsonl",  # noqa: A002
    ) -> None:
        """Write one kind of record, or the summary, to a binary stream."""
        self._reader.run(run_id)
        if format != "jsonl":
            _check_table(what, format)
            tables.write_table(self._reader, run_id, what, format, stream)
            return
        _mirror_path(what)
        if what == "summary":
            stream.write(summary.summary_bytes(self.summary(run_id)))
        elif what == "chain":
            run_folder.write_chain(self._reader, run_id, stream)
        else:
            mirrors.rebuild(self._reader, run_id, what, stream)


def _mirror_path(what: str, *also: str) -> Path:
    """The mirror of a kind of record. `also` is what else could have been asked for."""
    known = {**mirrors.PATHS, "summary": summary.PATH, "chain": run_folder.CHAIN_PATH}
    if what not in known:
        raise InvalidInput("the export", [_not_one_of("--what", what, [*known, *also])])
    return known[what]


def _check_table(what: str, form: str, *also: str) -> None:
    tables.check_format(form)
    if what not in export_tables.TABLES:
        raise InvalidInput(
            "the export", [_not_one_of(f"--what as {form}", what, [*export_tables.TABLES, *also])]
        )


def _not_one_of(where: str, found: str, known: Iterable[str]) -> Problem:
    return Problem(where, f"found {found!r}; expected one of {', '.join(known)}")
