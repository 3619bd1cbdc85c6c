"""`Ledger`: lists, queries, compares, reports and exports the runs of a ledger. It never writes.

Reading works while runs write. Modules that compare and report are imported when first needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self

from labledger import clock, resources
from labledger.api.run_state import (
    RECENT_RESULTS,
    Pause,
    RunSelection,
    RunState,
    controls_of,
    known_width,
    running_trials,
    sort_runs,
)
from labledger.errors import InvalidInput, Parameter, Problem
from labledger.files.lab_folder import LabFolder
from labledger.files.output_files import (
    make_folder_for,
    open_output,
    replace_output,
    scratch_folder_of,
)
from labledger.ledger.database.run_info import (
    CancelledSlots,
    Graded,
    Grading,
    Note,
    Rerun,
    RunInfo,
    Spent,
    UnjudgedSlot,
    VariantCounts,
)
from labledger.ledger.database.views_and_triggers import VIEWS
from labledger.ledger.query import (
    Params,
    ViewInfo,
    expand_view_name,
    query,
    require_names,
    view_engine,
    view_of,
    view_tables,
    views,
)
from labledger.ledger.reader import LedgerReader
from labledger.ledger.reading.progress_rows import OpenSlot
from labledger.ledger.rows.control_requests import ControlRequest
from labledger.ledger.rows.model_usage import ModelUse, together, use_of_trial
from labledger.records import JsonObject
from labledger.records.attempt_result import RECORD_KINDS, SlotRecords, digest_of
from labledger.records.identity import Slot
from labledger.records.model_calls import JOURNAL, read_calls
from labledger.records.outcomes import RunStatus

# Modules for export are imported where they are used, because short questions do not need them.

if TYPE_CHECKING:
    import sqlalchemy

    from labledger.api.trial_logs import LogPiece
    from labledger.compare.compare_options import CompareOptions
    from labledger.compare.comparison_document import Comparison
    from labledger.export.data_frames import RowWriter
    from labledger.ledger.database.run_info import ExperimentRevision
    from labledger.report.run_report import ReportOptions


def open_ledger(path: str | Path | None = None, *, lab_dir: str | Path | None = None) -> Ledger:
    """Open a ledger for reading, also while runs write to it.

    If an older labledger wrote the ledger, this reads a temporary upgraded copy, and the ledger
    itself stays unchanged.

    Args:
        path: A ledger file or a lab folder; None for the ledger of `lab_dir`.
        lab_dir: The lab folder; None for `LABLEDGER_DIR` or the nearest `.lab` folder upwards.

    Returns:
        The ledger. Close it, or use it in a `with` statement. One thread may use it at a time.

    Raises:
        LedgerMissing: There is no ledger.
        LedgerOutdated: An older labledger wrote it, and it is larger than 1 GiB or the disk has
            no space for a copy; `upgrade_ledger` upgrades it.
        LedgerTooNew: A newer labledger wrote it.
        NotALedger: The file is not a ledger of labledger.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     rows = ledger.query("SELECT * FROM scores WHERE run_id = ?", ["demo"])
    """
    if path is None or Path(path).is_dir():
        lab = LabFolder.find(lab_dir if path is None else Path(path))
        return Ledger(lab, lab.ledger, any_revision=True)
    return Ledger(LabFolder(Path(path).absolute().parent), Path(path), any_revision=True)


def view_names() -> tuple[str, ...]:
    """Return the names of the documented views, without opening a ledger.

    Example:
        >>> import labledger
        >>> "scores" in labledger.results.view_names()
        True
    """
    return tuple(VIEWS)


class Ledger:
    """A ledger opened for reading by `open_ledger`. Close it, or use it in a `with` statement.

    Methods that take a `run_id` raise `RunNotFound` if the ledger holds no such run.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger(lab_dir=".lab") as ledger:
        ...     newest = ledger.runs()[0]
        ...     print(newest.run_id, ledger.summary(newest.run_id)["ext"]["committed"])
    """

    def __init__(self, lab: LabFolder, path: Path, *, any_revision: bool = False) -> None:
        self._lab = lab
        self._path = path
        self._reader = LedgerReader.open_any(path) if any_revision else LedgerReader.open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reader(self) -> LedgerReader:
        """For the modules of labledger only: its methods change between versions."""
        return self._reader

    def close(self) -> None:
        """Close the ledger's file."""
        self._reader.close()

    def runs(
        self,
        selection: RunSelection | None = None,
        *,
        sort: str = "created",
        reverse: bool = False,
    ) -> list[RunInfo]:
        """Return the runs that match `selection`, by default all, the newest first.

        Args:
            selection: Which runs; None for all.
            sort: `created`, `changed` or `slots`, from the largest; or `run`, `experiment` or
                `status`, alphabetically. Among equal runs, the newest comes first.
            reverse: Reverse the whole list.

        Raises:
            InvalidInput: `sort` is unknown.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     largest = ledger.runs(sort="slots")[:1]
        """
        runs = self._reader.runs()
        if selection is not None:
            runs = [run for run in runs if selection.includes(run)]
        return sort_runs(runs, sort, reverse=reverse)

    def run(self, run_id: str) -> RunInfo:
        """Return a run's settings and progress. Raises `RunNotFound`."""
        return self._reader.run(run_id)

    def costs(self) -> dict[str, float]:
        """Return the cost of each run's trials in USD, by the run's id.

        The cost of a run is the sum of the metric `cost_usd` over the last attempts of its trials,
        as far as it is known. A run without any known cost is missing. For a run that a coordinator
        owns, or with results that wait to be committed, the cost includes all attempts, as in
        `spent`.
        """
        costs = self._reader.costs()
        for run_id in self._reader.runs_at_work():
            spent = self._reader.spent_so_far(run_id).get("cost_usd")
            if spent is not None and spent.known:
                costs[run_id] = spent.total
        return costs

    def incomplete_costs(self) -> frozenset[str]:
        """Return the runs whose cost is a lower bound, because some calls have an unknown cost."""
        return self._reader.incomplete_costs()

    def graded(self, run_id: str, grading: int | None = None) -> Graded:
        """Return the grading that a name means, with the run that has its records.

        A run's name means its current grading; ``RUN.g1``, ``RUN.g2``, … name its gradings.

        Args:
            run_id: The run, or one of its gradings.
            grading: The number of another grading of the same run; 1 is the run's own.

        Raises:
            RunNotFound: There is no such run, or no such grading of it.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     ledger.graded("demo").grading.generation
            2
        """
        return self._reader.graded(run_id, grading)

    def state(self, run_id: str, grading: int | None = None) -> RunState:
        """Return the progress, owner and spending of a run.

        The outcomes come from the run's current grading, or from the grading with the number
        `grading`, as for `graded`. If that is a regrading, its own progress is returned.
        """
        graded = self._reader.graded(run_id, grading)
        scored_id = graded.run.run_id
        run = graded.run
        if grading is None and run_id == graded.root_id:
            run = self._reader.run(run_id)
        run_id = run.run_id
        request = run.takeover_request
        requests = self._reader.control_requests(run_id)
        controls = controls_of(run, requests)
        owned, open_slots = self.is_owned(run), self._running(run_id)
        running = running_trials(self._lab, run, controls, open_slots) if owned else []
        return RunState(
            run=run,
            grading=graded.grading,
            variants=tuple(self._reader.counts(scored_id)),
            begun=self.begun(run_id),
            trials_running=len(running),
            max_concurrency=known_width(run, controls, len(open_slots)),
            open_slots={slot.schedule_idx: slot.host for slot in open_slots},
            staged=sum(staged.final for staged in self._reader.staged(run_id).values()),
            notes=tuple(self.notes(run_id)),
            gradings=tuple(self.gradings(run_id)),
            reruns=tuple(self.reruns(run_id)),
            spent=self.spent(run_id),
            model_usage=self.model_usage(run_id),
            model_answers=tuple(self._reader.model_answers(run_id)),
            unread_results=tuple(
                self._reader.unread_results(run_id, run.next_schedule_idx - RECENT_RESULTS)
            ),
            failed_gradings=tuple(
                self._reader.failed_gradings(scored_id, run.next_schedule_idx - RECENT_RESULTS)
            ),
            unjudged=tuple(self._reader.unjudged(run_id)),
            told_since=tuple(self._reader.told_since(scored_id)),
            cancelled=tuple(self.cancelled(run_id)),
            waiting_requests=tuple(asked for asked in requests if asked.waits),
            pauses=tuple(Pause.of(latch, asked) for latch, asked in controls.pauses.items()),
            holds_slots=controls.holds_slots,
            owned=owned,
            wanted_by=request if request and request.expires_at > clock.utc_now() else None,
        )

    def watch(self, run_id: str, interval_s: float = 1.0) -> Iterator[RunState]:
        """Return an iterator over the states of a run, one every `interval_s` seconds.

        The last state is the first one without an owner.

        Args:
            run_id: The run.
            interval_s: The seconds between two states.

        Raises:
            RunNotFound: The ledger holds no such run.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     for state in ledger.watch("demo"):
            ...         print(state.run.next_schedule_idx, "of", state.run.total_slots)
        """
        while True:
            state = self.state(run_id)
            yield state
            if not state.owned:
                return
            clock.sleep(interval_s)

    def is_owned(self, run: RunInfo) -> bool:
        """Return whether a coordinator owns a run and may be alive.

        A dead coordinator is noticed at once on this machine, and elsewhere when its lease ends.
        """
        from labledger.execution.process_identity import is_live

        return is_live(run.lease)

    def is_lost(self, run: RunInfo) -> bool:
        """Return whether a run's coordinator was killed or its machine failed.

        Such a run is stored as running, but no live coordinator owns it.
        """
        return run.status is RunStatus.RUNNING and not self.is_owned(run)

    def revisions(self, run_id: str) -> dict[int, ExperimentRevision]:
        """Return the revisions of a run's resolved experiment, by number of the part.

        Part 1 created the run, and each extension adds a revision. `run` returns the newest one.

        Args:
            run_id: The run's id.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     ledger.revisions("demo")[1].resolved["design"]["replications"]
            1
        """
        return self._reader.resolved_revisions(run_id)

    def notes(self, run_id: str) -> list[Note]:
        """Return the notes about a run, the oldest first."""
        return self._reader.notes(run_id)

    def control_requests(self, run_id: str) -> list[ControlRequest]:
        """Return the requests made of a run, in the order of their numbers, which start at 1."""
        return self._reader.control_requests(run_id)

    def task_ids(self, run_id: str) -> list[str]:
        """Return the ids of a run's tasks, in the order of the dataset."""
        return list(self._reader.task_digests(run_id))

    def open_slots(self, run_id: str) -> list[tuple[Slot, str, str]]:
        """Return the slots whose trial was dispatched and has no result yet, with host and time."""
        return [
            (self._reader.slot(run_id, slot.schedule_idx), slot.host, slot.since)
            for slot in self._running(run_id)
        ]

    def counts(self, run_id: str) -> list[VariantCounts]:
        """Return how many slots each variant has by status and verdict, in the current grading.

        ``RUN.g1``, ``RUN.g2``, … name other gradings.
        """
        return self._reader.counts(self.graded(run_id).run.run_id)

    def gradings(self, run_id: str) -> list[Grading]:
        """Return every grading of a run or of a regrading's root run, the oldest first."""
        return self._reader.gradings(run_id)

    def reruns(self, run_id: str) -> list[Rerun]:
        """Return the reruns of a run's slots, the oldest first.

        For a regrading, these are the reruns of the slots that it grades.
        """
        run = self._reader.run(run_id)
        if run.regrades is None:
            return self._reader.reruns(run_id)
        return self._reader.reruns(run.regrades["run_id"], run.total_slots)

    def cancelled(self, run_id: str) -> list[CancelledSlots]:
        """Return the cancelled slots of a run, by variant and request."""
        return self._reader.cancelled(run_id)

    def begun(self, run_id: str) -> int:
        """Return how many slots were dispatched or finished and are not committed yet."""
        start = self._reader.run(run_id).next_schedule_idx
        staged = self._reader.staged(run_id)
        return len(self._reader.last_dispatches(run_id, start).keys() | staged.keys())

    def _running(self, run_id: str) -> list[OpenSlot]:
        """Return the slots whose trial was dispatched and has no result yet."""
        return [slot for slot in self._reader.open_slots(run_id) if slot.is_running]

    def spent(self, run_id: str) -> dict[str, Spent]:
        """Return the spending of all trials of a run, committed or not; empty for a regrading.

        The keys are `cost_usd` and `tokens`.
        """
        regrades = self._reader.run(run_id).regrades is not None
        return {} if regrades else self._reader.spent_so_far(run_id)

    def model_usage(self, run_id: str) -> tuple[ModelUse, ...]:
        """Return the use of models by a run's trials, including trials running on this machine."""
        run = self._reader.run(run_id)
        if run.regrades is not None:
            return ()
        calls = defaultdict(list, self._reader.staged_calls(run.run_id))
        for idx, journal in self._open_journals(run):
            with suppress(OSError, ValueError):
                calls[idx] += read_calls(journal)
        uses = self._reader.model_usage(run.run_id)
        if any(calls.values()):
            prices = self._reader.prices(run.run_id)
            for idx, of_trial in calls.items():
                variant_id = self._reader.slot(run.run_id, idx).variant_id
                uses += use_of_trial(variant_id, of_trial, prices)
        return tuple(together(uses))

    def _open_journals(self, run: RunInfo) -> Iterator[tuple[int, Path]]:
        """Yield the journal of calls of each trial that runs on this machine, with its slot."""
        running = self._running(run.run_id)
        if not running:
            return
        from labledger.trial.contract import trial_folder

        folder = self._lab.run_folder(run.run_id)
        for slot in running:
            journal = trial_folder(folder, slot.schedule_idx, slot.attempt) / JOURNAL
            if journal.exists():
                yield slot.schedule_idx, journal

    def summary(self, run_id: str, grading: int | None = None) -> JsonObject:
        """Return the `benchmark_summary_v1` of the slots committed so far.

        It summarizes the current grading, or the grading with the number `grading`, as for
        `graded`. Its `run_id` is the run that has the grading's records. `export` writes it.
        """
        from labledger.export import summary

        return summary.build_summary(self._reader, self.graded(run_id, grading).run.run_id)

    def slot(self, run_id: str, schedule_idx: int, grading: int | None = None) -> JsonObject:
        """Return a slot, its status and reason, and its records by kind.

        The records come from the current grading, or from the grading with the number `grading`, as
        for `graded`; the key `grading` says which it is. Calls to models come from the run whose
        agents ran.

        `status` is None if the slot is not committed yet. `superseded_by` is present if a rerun
        replaces the slot, even before the new slot is committed. `unjudged` is present if the
        grader of a regrading gave no verdict, and says why. Raises `SlotNotFound`.
        """
        graded = self.graded(run_id, grading)
        scored_id, root_id = graded.run.run_id, graded.root_id
        slot = self._reader.slot(scored_id, schedule_idx)
        records = self._records(scored_id, schedule_idx)
        calls = records if scored_id == root_id else self._records(root_id, schedule_idx)
        replacement = self._reader.replacement(scored_id, schedule_idx)
        unjudged = None if records else self._unjudged(scored_id, schedule_idx)
        by_kind = {kind: records.objects(kind) if records else [] for kind in RECORD_KINDS}
        return {
            "slot": {
                "run_id": root_id if run_id == root_id else scored_id,
                **slot.as_json(),
                **({} if replacement is None else {"superseded_by": replacement}),
            },
            "grading": graded.grading.as_json(),
            **({} if unjudged is None else {"unjudged": unjudged.as_json()}),
            "status": records.status.value if records else None,
            "reason": records.reason if records else None,
            **by_kind,
            "model_calls": calls.objects("model_calls") if records and calls else [],
        }

    def _unjudged(self, run_id: str, schedule_idx: int) -> UnjudgedSlot | None:
        unjudged = self._reader.unjudged(run_id)
        return next((slot for slot in unjudged if slot.schedule_idx == schedule_idx), None)

    def _records(self, run_id: str, schedule_idx: int) -> SlotRecords | None:
        return next(self._reader.slot_records(run_id, schedule_idx, schedule_idx + 1), None)

    def artifact(self, reference: str) -> bytes:
        """Return the content behind an ``artifact://sha256/…`` reference after checking its digest.

        Raises `LedgerError` if the content is missing or damaged.
        """
        return self._reader.artifact(digest_of(reference))

    def logs(
        self,
        run_id: str,
        schedule_idx: int,
        phases: Sequence[str] = (),
        *,
        follow: bool = False,
        grading: int | None = None,
    ) -> Iterator[LogPiece]:
        """Return the outputs of a slot's trial in pieces, also while it runs.

        The values of secrets are redacted, also in live output: the engine reports the secrets of
        the trial's container.

        Args:
            run_id: The run.
            schedule_idx: The slot's number in the schedule.
            phases: `setup`, `agent`, `grader`, `events` or `steps`; empty for the three phases.
                `steps` are the agent's steps as text, available once the trial is collected.
            follow: Continue until the trial's result is committed or waits to be committed.
            grading: The number of a grading other than the current one, as for `graded`.

        Raises:
            SlotNotFound: The run has no such slot.
            InvalidInput: A phase is unknown.
            SecretsUnknown: The trial is running, and no engine here knows its secrets.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     for piece in ledger.logs("demo", 3, ["agent"]):
            ...         print(piece.name, len(piece.content))
        """
        from labledger.api.trial_logs import read_logs

        run_id = self.graded(run_id, grading).run.run_id
        folder = self._lab.run_folder(run_id)
        return read_logs(self._reader, folder, run_id, schedule_idx, phases, follow=follow)

    def query(
        self,
        sql: str,
        params: Params = (),
        generation: int | None = None,
        *,
        as_of: datetime | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows of one SELECT, or of a view, as dictionaries.

        Args:
            sql: A SELECT statement over the documented views, or a view's name for all its rows.
            params: Values for `:name` (a mapping) or `?` (a sequence).
            generation: Let the views show the newest complete grading of each run up to this
                number. None shows the newest.
            as_of: Let the views show the slots that were committed at this time, which needs a time
                zone. Cannot be combined with `generation`. Status, end and owner of runs, notes and
                tags are always current.

        Raises:
            QueryFailed: The statement is not valid, does more than read, or names a table.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     ledger.query("SELECT count(*) AS n FROM scores WHERE run_id = ?", ["demo"])
            [{'n': 41}]
        """
        columns, rows = self.rows(sql, params, generation, as_of=as_of)
        with closing(rows):
            require_names(columns)
            return [dict(zip(columns, row, strict=True)) for row in rows]

    def rows(
        self,
        sql: str,
        params: Params = (),
        generation: int | None = None,
        *,
        as_of: datetime | None = None,
    ) -> tuple[tuple[str, ...], Generator[tuple[Any, ...]]]:
        """Return the column names of a query and its rows as a stream. See `query`."""
        moment = None if as_of is None else clock.iso(as_of)
        sql = expand_view_name(sql)
        return query(self._path, sql, params, generation, as_of=moment, views_only=True)

    def write_query(
        self,
        sql: str,
        out: str | Path | BinaryIO,
        format: str | RowWriter = "csv",  # noqa: A002
        params: Params = (),
        generation: int | None = None,
        *,
        as_of: datetime | None = None,
    ) -> int:
        """Write the rows of a query to a file or a binary stream, and return their number.

        A file appears whole or not at all. Rows are streamed.

        Args:
            sql: As for `query`; so are `params`, `generation` and `as_of`.
            out: The file, or a binary stream.
            format: `csv`, `json`, `jsonl` or `parquet`, or a function that writes column names and
                rows to a binary stream and returns their number. Parquet needs a file.

        Raises:
            QueryFailed: The query failed, or the format cannot hold its rows.
            InvalidInput: The format is unknown.
            ExtraMissing: Parquet cannot be written: pyarrow is not installed.
        """
        make_folder_for(out)
        if format == "parquet":
            if not isinstance(out, str | Path):
                raise InvalidInput(
                    "the query", [Problem(Parameter("format"), "parquet needs a file")]
                )
            return self.parquet(sql, Path(out), params, generation, as_of=as_of)
        from labledger.export import data_frames

        writer = format if callable(format) else data_frames.text_writer(format)
        columns, rows = self.rows(sql, params, generation, as_of=as_of)
        with closing(rows), open_output(out) as stream:
            return writer(columns, rows, stream)

    def frame(
        self,
        view_or_sql: str,
        params: Params = (),
        engine: Literal["pandas", "polars"] = "pandas",
        *,
        generation: int | None = None,
        as_of: datetime | None = None,
    ) -> Any:
        """Return a query's rows as a DataFrame of pandas or polars. See `query`.

        Integers become the nullable `Int64` in pandas. Columns of times (`…_at`) become times in
        UTC. Columns that mix numbers and text become text. Raises `ExtraMissing` if the library is
        not installed.
        """
        columns, rows = self.rows(view_or_sql, params, generation, as_of=as_of)
        with closing(rows):
            from labledger.export import data_frames

            return data_frames.make_frame(columns, rows, engine)

    def engine(self) -> sqlalchemy.Engine:
        """Return a SQLAlchemy engine that can only read the documented views.

        Use it with `pandas.read_sql`, or with expressions over `tables`. Each transaction reads one
        snapshot. The engine stays open after the ledger is closed, until you call its `dispose`.

        Example:
            >>> import labledger, pandas
            >>> with labledger.open_ledger() as ledger:
            ...     engine = ledger.engine()
            >>> pandas.read_sql("SELECT * FROM scores", engine)
        """

        return view_engine(self._path)

    def tables(self) -> dict[str, sqlalchemy.Table]:
        """Return the documented views as SQLAlchemy tables by name, for use in expressions.

        Example:
            >>> import labledger
            >>> from sqlalchemy import func, select
            >>> with labledger.open_ledger() as ledger:
            ...     scores, engine = ledger.tables()["scores"], ledger.engine()
            >>> passed = select(func.count()).where(scores.c.verdict == "pass")

            >>> with engine.connect() as connection:
            ...     connection.scalar(passed)
            41
        """

        return view_tables(self._path)

    def parquet(
        self,
        view_or_sql: str,
        out: Path,
        params: Params = (),
        generation: int | None = None,
        *,
        as_of: datetime | None = None,
    ) -> int:
        """Write a query's rows to a Parquet file, and return their number. See `query`.

        Rows are streamed; the file appears whole or not at all. Raises `ExtraMissing` if pyarrow is
        not installed.
        """
        from labledger.export import data_frames

        make_folder_for(out)
        data_frames.require_parquet()
        columns, rows = self.rows(view_or_sql, params, generation, as_of=as_of)
        with closing(rows), replace_output(out) as handle:
            return data_frames.write_parquet(
                columns, rows, handle, scratch_folder_of(out), view_of(view_or_sql)
            )

    def views(self) -> list[ViewInfo]:
        """Return the documented views and their columns."""
        return views(self._path)

    def report(self, run_id: str, options: ReportOptions | None = None) -> JsonObject:
        """Return the facts of a run's report, the `report_v1` of the slots committed so far.

        A run's name means its current grading. ``RUN.g1``, ``RUN.g2``, … name its gradings, and
        ``RUN1+RUN2`` means several runs taken as one. Raises `InvalidInput` for an invalid option.
        """
        from labledger.report.run_report import ReportOptions, collect

        return collect(self._reader, run_id, options or ReportOptions()).as_json()

    def rendered_report(
        self, run_id: str, form: str = "html", options: ReportOptions | None = None
    ) -> bytes:
        """Return a run's report as ``html``, ``markdown`` or ``json``, in UTF-8. See `report`.

        Raises `ExtraMissing` if a library that the page needs is not installed.
        """
        stream = BytesIO()
        self.write_report(run_id, stream, form, options)
        return stream.getvalue()

    def write_report(
        self,
        run_id: str,
        out: str | Path | BinaryIO,
        form: str = "html",
        options: ReportOptions | None = None,
    ) -> int:
        """Write a run's report to a file or a binary stream, and return its size in bytes.

        A file appears whole or not at all. JSON is streamed. See `rendered_report`.
        """
        from labledger.report.run_report import ReportOptions, render

        make_folder_for(out)
        pieces = render(self._reader, run_id, form, options or ReportOptions())
        with closing(pieces):
            first = next(pieces)  # This may take long or fail, so do it before opening the file.
            with open_output(out) as stream:
                return sum(map(stream.write, chain([first], pieces)))

    def compare(self, *sides: str, options: CompareOptions | None = None) -> Comparison:
        """Compare variants or runs over the tasks that both sides have.

        Args:
            sides: One of: a run, to compare its baseline with every treatment; a run and two of its
                variants; two sides, each ``RUN`` or ``RUN:VARIANT``. A run's name means its current
                grading. ``RUN.g1``, ``RUN.g2``, … name its gradings, and ``RUN1+RUN2`` means
                several runs taken as one, such as shards or repetitions of an experiment. With
                `options.all_pairs`: a run, a run and some of its variants, or any sides.
            options: The metric, the counting of errors, and gates.

        Raises:
            InvalidInput: A side or an option is not valid.
            ExtraMissing: A library that the statistics need is not installed.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     print(ledger.compare("demo").comparisons[0].decision.text)
        """
        from labledger.compare.compare import compare
        from labledger.compare.compare_options import CompareOptions

        return compare(self._reader, sides, options or CompareOptions())

    def export(
        self,
        run_id: str,
        what: str = "all",
        out: Path | None = None,
        *,
        format: str = "jsonl",  # noqa: A002
    ) -> list[Path]:
        """Write a run's records to files, and return the files written.

        The records belong to exactly the named run, regrading or grading (``RUN.g1``); `graded`
        says which run has the current grading.

        - `jsonl` writes the mirrors and the summary, byte for byte as the run wrote them. Without
          `out`, it replaces the files in the run folder.
        - `csv` and `parquet` write tables with fixed columns. Without `out`, they go into the
          folder `tables` of the run folder. With `out`, ``RUN1+RUN2`` writes one table for several
          runs.

        The agents' steps are written only on request, as `trajectories` (ATIF), `spans`
        (OpenTelemetry) or `inspect` (one Inspect log for each variant). With `what="all"` or
        `"inspect"`, `out` is a folder.

        Raises:
            InvalidInput: There is no such kind of record or format.
            ExtraMissing: A library for the format is not installed: pyarrow for Parquet, the extra
                `otel` for spans, or the extra `inspect` for Inspect logs.
        """
        from labledger.export import exported_files

        run_ids = exported_files.run_ids_of(self._reader, run_id, format)
        folder = self._lab.run_folder(run_ids[0]) if len(run_ids) == 1 else None
        return exported_files.write_records(self._reader, run_ids, folder, what, out, format)

    def send_spans(self, run_id: str, url: str) -> int:
        """Write the steps of a run's agents to an endpoint as OpenTelemetry spans.

        Returns the number of spans.

        Args:
            run_id: The run.
            url: An endpoint of OTLP over HTTP, such as ``http://127.0.0.1:4318/v1/traces``.

        Raises:
            ExtraMissing: The libraries of the extra `otel` are not installed.
            LabLedgerError: The endpoint did not accept them.

        Example:
            >>> import labledger
            >>> with labledger.open_ledger() as ledger:
            ...     ledger.send_spans("demo", "http://127.0.0.1:4318/v1/traces")
        """
        resources.require_otel()
        # Imported late: it needs the libraries of the extra `otel`.
        from labledger.export import otel_spans

        return otel_spans.send_spans(self._reader, self._reader.run(run_id).run_id, url)

    def export_to(
        self,
        run_id: str,
        what: str,
        stream: BinaryIO,
        *,
        format: str = "jsonl",  # noqa: A002
    ) -> None:
        """Write one kind of record, or the summary, to a binary stream. See `export`."""
        from labledger.export import exported_files

        run_ids = exported_files.run_ids_of(self._reader, run_id, format)
        exported_files.stream_records(self._reader, run_ids, what, stream, format)
