"""The library: `run`, `resume` and `open_ledger`. The command line is a thin layer over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

from labledger.analysis.compare import compare as compare_sides
from labledger.analysis.comparison import Comparison
from labledger.analysis.query import ViewInfo
from labledger.analysis.query import query as ask
from labledger.analysis.query import views as list_views
from labledger.analysis.question import CompareOptions
from labledger.analysis.report import facts as report_facts
from labledger.analysis.report.options import ReportOptions
from labledger.analysis.report.rendering import render as render_report
from labledger.errors import InvalidInput, Problem
from labledger.export import mirrors, summary
from labledger.export.files import replacing
from labledger.ledger.model import RunInfo, VariantCounts
from labledger.ledger.reader import LedgerReader
from labledger.records import RECORD_KINDS, JsonObject
from labledger.runner.lab import Lab
from labledger.runner.launch import resume_run, start_run
from labledger.runner.options import RunOptions, RunOutcome

__all__ = [
    "CompareOptions",
    "Ledger",
    "ReportOptions",
    "RunOptions",
    "RunOutcome",
    "open_ledger",
    "resume",
    "run",
]


def run(experiment: str | Path, options: RunOptions | None = None) -> RunOutcome:
    """Run an experiment file to its end and return how it stands.

    Raises `InvalidInput` or `PreflightFailed` before anything exists, and another
    `LabLedgerError` where the run could not go on; then `resume` continues it.
    """
    return start_run(Path(experiment), options or RunOptions())


def resume(run_id: str, options: RunOptions | None = None) -> RunOutcome:
    """Go on with an interrupted run. Nothing that finished or was started is run again."""
    return resume_run(run_id, options or RunOptions())


def open_ledger(path: str | Path | None = None, *, lab_dir: Path | None = None) -> Ledger:
    """Open a ledger to read: the file at `path`, or the one of a lab folder.

    Reads while runs write. Raises `LedgerMissing`, `LedgerOutdated` or `LedgerTooNew`.
    """
    lab = Lab.find(lab_dir) if path is None else Lab(Path(path).absolute().parent)
    return Ledger(lab, Path(path) if path is not None else lab.ledger)


class Ledger:
    """Answers from a ledger; it cannot write. Close it, or use it in a `with` statement."""

    def __init__(self, lab: Lab, path: Path) -> None:
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

    def begun(self, run_id: str) -> int:
        """How many slots were dispatched or finished and are not committed yet."""
        start = self._reader.run(run_id).next_schedule_idx
        staged = self._reader.staged(run_id)
        return len(self._reader.last_dispatches(run_id, start).keys() | staged.keys())

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
        return self._reader.artifact(reference.removeprefix("artifact://sha256/"))

    def query(
        self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()
    ) -> list[dict[str, Any]]:
        """The rows of one SELECT as dictionaries. `params` fill `:name` or `?`.

        Raises `QueryFailed`.
        """
        columns, rows = self.rows(sql, params)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def rows(
        self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """The columns and the rows, streamed, of one SELECT. Raises `QueryFailed`."""
        return ask(self._path, sql, params)

    def views(self) -> list[ViewInfo]:
        """The documented views and their columns."""
        return list_views(self._path)

    def report(self, run_id: str, options: ReportOptions | None = None) -> JsonObject:
        """The facts of a run's report: the `report_v1` of what is committed so far.

        Raises `RunNotFound` or `InvalidInput`.
        """
        return report_facts.collect(self._reader, run_id, options or ReportOptions())

    def rendered_report(
        self, run_id: str, form: str = "html", options: ReportOptions | None = None
    ) -> bytes:
        """The report as ``html``, ``markdown`` or ``json``. Raises `ExtraMissing` for the page."""
        return render_report(self._reader, run_id, form, options or ReportOptions())

    def compare(self, *sides: str, options: CompareOptions | None = None) -> Comparison:
        """Compare variants or runs, paired by task and replication.

        `sides` are the words of `labledger compare`: a run; a run and two variants; or two of
        ``RUN`` or ``RUN:VARIANT``. Raises `ExtraMissing`, `InvalidInput` or `RunNotFound`.
        """
        return compare_sides(self._reader, sides, options or CompareOptions())

    def export(self, run_id: str, what: str = "all", out: Path | None = None) -> list[Path]:
        """Write mirrors (or the summary) anew, byte for byte as the run wrote them.

        Without `out` they are the run folder's own. With `what="all"`, `out` is a folder.
        Returns the files written.
        """
        self._reader.run(run_id)
        if what == "all":
            folder = out or self._lab.run_folder(run_id)
            files = mirrors.rebuild_all(self._reader, run_id, folder)
            return [*files, summary.write_summary(folder, self.summary(run_id))]
        relative = _mirror_path(what)
        path = out or self._lab.run_folder(run_id) / relative
        if what == "summary":
            with replacing(path) as handle:
                handle.write(summary.summary_bytes(self.summary(run_id)))
        else:
            mirrors.rebuild(self._reader, run_id, what, path)
        return [path]

    def export_to(self, run_id: str, what: str, stream: BinaryIO) -> None:
        """Write one mirror, or the summary, to a binary stream."""
        _mirror_path(what)
        if what == "summary":
            stream.write(summary.summary_bytes(self.summary(run_id)))
        else:
            self._reader.run(run_id)
            mirrors.rebuild(self._reader, run_id, what, stream)


def _mirror_path(what: str) -> Path:
    known = {**mirrors.PATHS, "summary": summary.PATH}
    if what not in known:
        expected = ", ".join(known)
        problem = Problem("--what", f"found {what!r}; expected one of {expected}")
        raise InvalidInput("the export", [problem])
    return known[what]
