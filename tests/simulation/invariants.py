"""The guarantees of labledger, as checks of a simulated world.

`docs/explanation/guarantee-tests.md` names each of them; a test compares the two.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.export.mirrors import ALL_PATHS
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.reader import LedgerReader
from labledger.records.outcomes import SlotStatus
from labledger.upkeep.verify_lab import verify_lab
from simulation import scheduler
from simulation.labs import DESIGNS, RETRY, RUN, SLOTS
from simulation.seam import COST_USD, STATUSES, has_passed, spends_though_killed

if TYPE_CHECKING:
    from simulation.runs import World


class Violation(AssertionError):
    """A guarantee does not hold."""


@dataclass(slots=True)
class Start:
    """A container of an attempt that was started."""

    container_id: str
    at: float
    by: str
    ended_by_itself: bool = False
    exit_status: int | None = None
    was_removed: bool = False


@dataclass(slots=True)
class Observed:
    """The trials as the world saw them, beside the ledger's rows."""

    starts: dict[tuple[str, int, int], list[Start]] = field(
        default_factory=lambda: defaultdict(list)
    )
    committed: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    """Epoch and payload digest of each committed slot, by run and slot."""
    dispatched: set[tuple[int, int]] = field(default_factory=set)
    """Slot and attempt of each dispatch that was seen."""
    next_idx: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    leases: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Process and end of each lease."""
    journaled_attempts: set[tuple[int, int]] = field(default_factory=set)
    """Slot and attempt of each dispatch of the run that was seen."""
    complete: set[str] = field(default_factory=set)
    """Runs that have ended, unless they grow."""
    may_be_back: set[str] = field(default_factory=set)
    """Runs that were complete at a power cut. Their deleted notes may be back."""
    paused_hosts: dict[str, float] = field(default_factory=dict)
    """When the pause of a host was applied, by its name."""
    applied: dict[int, str] = field(default_factory=dict)
    """The outcome of each request that was seen applied."""
    kills_are_asked_for: bool = False
    """Whether a person requested something that ends running trials."""
    killed: list[str] = field(default_factory=list)
    """The containers that the product killed before such a request."""
    at_most: list[int] = field(default_factory=list)
    """The limits that people set for the coordinator's machine during the run."""
    too_many: list[str] = field(default_factory=list)
    """The containers that started although the limit of their machine was reached."""
    journaled: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many containers were journaled in earlier epochs, by run and epoch."""


Check = Callable[["World"], Iterator[str]]
AFTER_COMMIT: dict[str, Check] = {}
"""Checked after each transaction of the ledger, by the names under which they are documented."""
LEASES = "no lease is taken while it lasts and its owner lives"
DURABLE = "digests and mirrors fit the ledger"
AT_REST: dict[str, Check] = {}
"""Checked whenever no coordinator is alive."""
AT_END: dict[str, Check] = {}
"""Checked when the faults are over, and every run has ended."""


def after_commit(name: str) -> Callable[[Check], Check]:
    return lambda check: AFTER_COMMIT.setdefault(name, check)


def at_rest(name: str) -> Callable[[Check], Check]:
    return lambda check: AT_REST.setdefault(name, check)


def at_end(name: str) -> Callable[[Check], Check]:
    return lambda check: AT_END.setdefault(name, check)


def check(world: World, checks: dict[str, Check], *, only: str = "") -> None:
    """Raise `Violation` for the first guarantee that fails, or only for the guarantee `only`."""
    for name, function in checks.items():
        if only not in ("", name):
            continue
        for problem in function(world):
            raise Violation(f"{name}: {problem}")


@after_commit("a coordinator that has lost a run writes nothing of it")
def _is_written_by_its_owner(world: World) -> Iterator[str]:
    """Runs first, so that the observations are from before the transaction."""
    observed = world.observed
    for run_id, idx, epoch in world.rows(
        "SELECT run.run_id, c.schedule_idx, c.epoch FROM schedule_progress p "
        "JOIN run ON run.run_no = p.run_no JOIN slot_commit c ON c.run_no = p.run_no "
        "AND c.schedule_idx = p.next_schedule_idx - 1"
    ):
        is_new = idx >= observed.next_idx.get(run_id, 0)
        if is_new and epoch < observed.epochs.get(run_id, 0):
            yield f"slot {idx} of {run_id} was committed in epoch {epoch}, which is over"
    for run_id, epoch, count in world.rows(
        "SELECT run.run_id, p.epoch, (SELECT count(*) FROM dispatch d "
        "WHERE d.run_no = p.run_no AND d.epoch < p.epoch) "
        "FROM run JOIN schedule_progress p ON p.run_no = run.run_no"
    ):
        if count > observed.journaled.setdefault((run_id, epoch), count):
            yield f"a container of {run_id} was journaled in an epoch before {epoch}"


@after_commit("no finished result is lost")
def _committed_rows_stay(world: World) -> Iterator[str]:
    seen = world.observed.committed
    commits: dict[tuple[str, int], tuple[int, str]] = {}
    for run_id, idx, epoch, digest in world.rows(
        "SELECT run.run_id, c.schedule_idx, c.epoch, hex(c.payload_digest) FROM slot_commit c "
        "JOIN run ON run.run_no = c.run_no"
    ):
        commits[run_id, idx] = epoch, digest
    for key, committed in seen.items():
        if commits.get(key) != committed:
            yield f"slot {key} was committed as {committed}, and is {commits.get(key)} now"
    seen.update(commits)


@after_commit("the end of a run is announced with it")
def _ends_are_announced(world: World) -> Iterator[str]:
    for run_id, subject in world.rows(
        "SELECT run.run_id, CASE p.status WHEN 'completed' THEN schedule.total_slots || ' slots' "
        "ELSE 'epoch ' || p.epoch END AS subject "
        "FROM schedule_progress p JOIN run ON run.run_no = p.run_no "
        "JOIN schedule ON schedule.run_no = p.run_no "
        "WHERE (p.status = 'completed' OR p.stop_cause IS NOT NULL) "
        "AND EXISTS (SELECT 1 FROM run_receiver r WHERE r.run_no = p.run_no) "
        "AND NOT EXISTS (SELECT 1 FROM notification n WHERE n.run_no = p.run_no "
        "AND n.event IN ('finished', 'stopped') AND n.subject = "
        "CASE p.status WHEN 'completed' THEN schedule.total_slots || ' slots' "
        "ELSE 'epoch ' || p.epoch END)"
    ):
        yield f"{run_id} has ended ({subject}), and its receivers are not told"


@after_commit("slots are committed in schedule order")
def _progress_equals_rows(world: World) -> Iterator[str]:
    for run_id, next_idx, first_missing, count in world.rows(
        "SELECT run.run_id, p.next_schedule_idx, coalesce(max(c.schedule_idx) + 1, 0), "
        "count(c.schedule_idx) FROM run JOIN schedule_progress p ON p.run_no = run.run_no "
        "LEFT JOIN slot_commit c ON c.run_no = run.run_no GROUP BY run.run_no"
    ):
        if not next_idx == first_missing == count:
            yield f"{run_id} is at slot {next_idx}, and has {count} up to {first_missing}"
        if next_idx < world.observed.next_idx.get(run_id, 0):
            yield f"{run_id} went back to slot {next_idx}"
        world.observed.next_idx[run_id] = next_idx


@after_commit("a run has one owner, and epochs never go back")
def _epochs_grow(world: World) -> Iterator[str]:
    for run_id, epoch in world.rows(
        "SELECT run.run_id, p.epoch FROM run JOIN schedule_progress p ON p.run_no = run.run_no"
    ):
        if epoch < world.observed.epochs.get(run_id, 0):
            yield f"the epoch of {run_id} went back to {epoch}"
        world.observed.epochs[run_id] = epoch
    for run_id, idx, epoch, before in world.rows(
        "SELECT run.run_id, c.schedule_idx, c.epoch, b.epoch FROM slot_commit c "
        "JOIN slot_commit b ON b.run_no = c.run_no AND b.schedule_idx = c.schedule_idx - 1 "
        "JOIN run ON run.run_no = c.run_no WHERE c.epoch < b.epoch"
    ):
        yield f"slot {idx} of {run_id} was committed in epoch {epoch}, after one of {before}"


@after_commit(LEASES)
def _leases_are_respected(world: World) -> Iterator[str]:
    before, world.observed.leases = world.observed.leases, {}
    living = {process.pid for process in world.machine.living()}
    for run_id, pid, since, until in world.rows(
        "SELECT run.run_id, lease.pid, lease.acquired_at, lease.expires_at "
        "FROM lease JOIN run ON run.run_no = lease.run_no"
    ):
        world.observed.leases[run_id] = pid, until
        owner, end = before.get(run_id, (pid, ""))
        if owner != pid and owner in living and end > since:
            yield f"process {pid} took {run_id} at {since} from {owner}, whose lease ended at {end}"


@after_commit("only running trials can exceed the budget")
def _budget_holds(world: World) -> Iterator[str]:
    dispatched = {
        (idx, attempt): at
        for idx, attempt, at in world.rows(
            "SELECT schedule_idx, attempt, min(dispatched_at) FROM dispatch GROUP BY 1, 2"
        )
    }
    new, world.observed.dispatched = dispatched.keys() - world.observed.dispatched, set(dispatched)
    limits = world.rows("SELECT amount FROM budget WHERE kind = 'cost_usd'") if new else []
    if not limits:
        return
    ((count,),) = world.rows(
        "SELECT (SELECT count(*) FROM metric WHERE metric_id = 'cost_usd') + "
        "(SELECT count(*) FROM evidence_record WHERE record -> '$.ext.spent' IS NOT NULL) + "
        "(SELECT count(*) FROM staged_result WHERE payload LIKE '%\"cost_usd\"%')"
    )
    if count * COST_USD >= limits[0][0]:
        yield f"{sorted(new)} were dispatched when {count * COST_USD} of {limits[0][0]} were spent"


@after_commit("a run stops for its budget when that is spent, and not before")
def _stops_in_time(world: World) -> Iterator[str]:
    if not world.rows("SELECT 1 FROM schedule_progress WHERE stop_cause = 'budget'"):
        return
    # Results that a full disk refused were paid for, too.
    stored = "SELECT schedule_idx, attempt FROM attempt UNION ALL SELECT schedule_idx, attempt"
    attempts = world.rows(f"{stored} FROM staged_result")
    ended = {key[1:] for key, starts in world.observed.starts.items() if starts[-1].ended_by_itself}
    most = (len(attempts) + len(ended - set(attempts))) * COST_USD
    for (limit,) in world.rows("SELECT amount FROM budget WHERE kind = 'cost_usd'"):
        if most < limit:
            yield f"it stopped when at most {most} of {limit} were spent"


@after_commit("nothing that is paused is dispatched")
def _pauses_hold(world: World) -> Iterator[str]:
    """Compares the run's own view of the requests with its journal."""
    journaled = {
        key: (variant, task, host.partition("/")[0])
        for *key_parts, variant, task, host, _ in world.rows(
            "SELECT d.schedule_idx, d.attempt, v.variant_id, t.task_id, d.host, "
            "min(d.dispatched_at) "
            "FROM dispatch d JOIN run ON run.run_no = d.run_no AND run.run_id = ? "
            "JOIN slot s ON s.run_no = d.run_no AND s.schedule_idx = d.schedule_idx "
            "JOIN run_variant v ON v.run_no = s.run_no AND v.variant_idx = s.variant_idx "
            "JOIN run_task t ON t.run_no = s.run_no AND t.task_idx = s.task_idx GROUP BY 1, 2",
            RUN,
        )
        for key in [tuple(key_parts)]
    }
    new = journaled.keys() - world.observed.journaled_attempts
    world.observed.journaled_attempts |= new
    paused = _paused(world)
    hosts = {name for scope, name in paused if scope == "host"}
    since = world.observed.paused_hosts
    world.observed.paused_hosts = {name: since.get(name, world.time.now) for name in hosts}
    for key in sorted(new):
        variant, task, host = journaled[key]
        if paused & {("run", ""), ("variant", variant), ("task", task), ("host", host)}:
            yield f"{key} was dispatched, and {sorted(paused)} is paused"


def _paused(world: World) -> set[tuple[str, str]]:
    paused: set[tuple[str, str]] = set()
    for kind, what in world.rows(
        "SELECT kind, what FROM control_request WHERE applied_at IS NOT NULL ORDER BY request_no"
    ):
        named_by_scope = json.loads(what)
        scopes = ("variant", "task", "host")
        named = {(scope, name) for scope in scopes for name in named_by_scope.get(scope, ())}
        if kind == "pause":
            paused |= named or {("run", "")}
        elif kind == "unpause":
            paused = set()
    return paused


@after_commit("requests are applied once, in their order")
def _applied_in_order(world: World) -> Iterator[str]:
    applied = world.rows(
        "SELECT request_no, applied_at IS NOT NULL, outcome FROM control_request "
        "ORDER BY run_no, request_no"
    )
    for (number, is_applied, _), (later, later_applied, _) in pairwise(applied):
        if later > number and later_applied and not is_applied:
            yield f"request {later} was applied before request {number}"
    for number, is_applied, outcome in applied:
        before = world.observed.applied.get(number)
        if before is not None and before != outcome:
            yield f"request {number} was applied again: {outcome}, before {before}"
        if is_applied:
            world.observed.applied[number] = outcome


@at_end("a slot recorded as never run has not run")
def _never_ran(world: World) -> Iterator[str]:
    for (idx,) in world.rows(
        "SELECT c.schedule_idx FROM slot_commit c JOIN run ON run.run_no = c.run_no "
        "WHERE run.run_id = ? AND c.status IN ('cancelled', 'skipped_pruned')",
        RUN,
    ):
        starts = [key for key in world.observed.starts if key[:2] == (RUN, idx)]
        if starts:
            yield f"slot {idx} was committed as never run, and {starts} were started"


@at_end("slots are cancelled by requests alone")
def _cancelled_by_requests(world: World) -> Iterator[str]:
    slots: set[int] = set()
    variants: set[str] = set()
    for (what,) in world.rows(
        "SELECT what FROM control_request WHERE kind = 'cancel' AND applied_at IS NOT NULL"
    ):
        named_by_scope = json.loads(what)
        slots |= set(named_by_scope.get("slot", ()))
        variants |= set(named_by_scope.get("variant", ()))
    for idx, variant in world.rows(
        "SELECT c.schedule_idx, v.variant_id FROM slot_commit c "
        "JOIN run ON run.run_no = c.run_no AND run.run_id = ? "
        "JOIN slot s ON s.run_no = c.run_no AND s.schedule_idx = c.schedule_idx "
        "JOIN run_variant v ON v.run_no = s.run_no AND v.variant_idx = s.variant_idx "
        "LEFT JOIN trial t ON t.run_no = c.run_no AND t.schedule_idx = c.schedule_idx "
        "WHERE c.status = 'cancelled' OR t.reason = 'cancelled'",
        RUN,
    ):
        if idx not in slots and variant not in variants:
            yield f"slot {idx} was cancelled without a request"


@at_end("every run ends")
def _is_complete(world: World) -> Iterator[str]:
    for run_id, next_idx, total, status in world.rows(
        "SELECT run.run_id, p.next_schedule_idx, count(s.schedule_idx), p.status FROM run "
        "JOIN schedule_progress p ON p.run_no = run.run_no JOIN slot s ON s.run_no = run.run_no "
        "GROUP BY run.run_no"
    ):
        if next_idx != total or status != "completed":
            yield f"{run_id} is {status} with {next_idx} of {total} slots"


@at_end("no agent is started twice without saying so")
def _starts_are_documented(world: World) -> Iterator[str]:
    for (run_id, idx, attempt), starts in world.observed.starts.items():
        if run_id != RUN:
            continue  # A regrading runs no agent: its grader may start again.
        if any(start.by in world.lost for start in starts):
            continue  # Its notes are on the host that was declared lost.
        notes = world.notes(run_id, idx, attempt)
        if len(starts) > 1 + len(notes):
            when = ", ".join(f"{start.at - 1000:.2f} s by {start.by}" for start in starts)
            yield (
                f"slot {idx}, attempt {attempt} of {run_id} was started {len(starts)} times "
                f"({when}), and its notes are {notes}"
            )


@at_end("an agent's spending is kept when a person stops its run")
def _spending_is_kept(world: World) -> Iterator[str]:
    for (run_id, idx, attempt), starts in world.observed.starts.items():
        killed = [start.container_id[-8:] for start in starts if not start.ended_by_itself]
        unpaid = [start for start in killed if not spends_though_killed(start)]
        notes = world.notes(run_id, idx, attempt) if run_id == RUN else []
        if sum("killed its container" in note for note in notes) > len(unpaid):
            yield f"slot {idx}, attempt {attempt} cost something in one of {killed}: {notes}"


@at_end("the committed result is what the trial did")
def _results_are_of_their_containers(world: World) -> Iterator[str]:
    for (run_id, idx, attempt), starts in world.observed.starts.items():
        *earlier, last = starts
        for start in earlier if run_id == RUN else ():
            if start.ended_by_itself and not start.was_removed and start.by not in world.lost:
                yield f"slot {idx}, attempt {attempt} of {run_id} had ended, and was run again"
        is_lost = last.by in world.lost  # A person declared the host lost: its result is refused.
        if last.was_removed or is_lost:
            continue
        if not last.ended_by_itself and len(world.notes(run_id, idx, attempt)) >= len(starts):
            continue  # A person ended it at once, and its evidence says so.
        if not last.ended_by_itself and _was_cancelled(world, idx, attempt):
            continue
        container, reason = world.evidence(run_id, idx, attempt)
        if container != last.container_id[-8:]:
            yield (
                f"slot {idx}, attempt {attempt} of {run_id} ran in {last.container_id[-8:]}, and "
                f"its evidence is of {container!r} ({reason})"
            )
        elif last.ended_by_itself:
            yield from _other_content(world, run_id, idx, attempt, last)


def _was_cancelled(world: World, idx: int, attempt: int) -> bool:
    """Return whether an attempt on a host is committed as cancelled by a person."""
    return world.design == "cluster" and bool(
        world.rows(
            "SELECT 1 FROM attempt a JOIN run ON run.run_no = a.run_no AND run.run_id = ? "
            "WHERE a.schedule_idx = ? AND a.attempt = ? AND a.reason = 'cancelled'",
            *(RUN, idx, attempt),
        )
    )


def _other_content(
    world: World, run_id: str, idx: int, attempt: int, start: Start
) -> Iterator[str]:
    """Compare the rows of an attempt with the outputs of its container."""
    name = start.container_id[-8:]
    status, _ = STATUSES.get(start.exit_status, (SlotStatus.INFRA_ERROR, None))
    is_graded = status is SlotStatus.COMPLETED
    verdict = "pass" if has_passed(name) else "fail"
    ((stored_status, is_last, *rows),) = world.rows(
        "SELECT a.status, a.attempt = t.attempt, coalesce(t.verdict, ''), "
        "(SELECT group_concat(verdict) FROM score r WHERE r.run_no = a.run_no "
        "AND r.schedule_idx = a.schedule_idx), "
        "(SELECT group_concat(record ->> '$.prediction.value') FROM prediction r "
        "WHERE r.run_no = a.run_no AND r.schedule_idx = a.schedule_idx), "
        "(SELECT group_concat(metric_id || ' ' || value) FROM metric r "
        "WHERE r.run_no = a.run_no AND r.schedule_idx = a.schedule_idx) "
        "FROM attempt a JOIN run ON run.run_no = a.run_no JOIN trial t ON t.run_no = a.run_no "
        "AND t.schedule_idx = a.schedule_idx "
        "WHERE run.run_id = ? AND a.schedule_idx = ? AND a.attempt = ?",
        *(run_id, idx, attempt),
    )
    expected = [verdict, verdict, f"of container {name}"] if is_graded else ["", None, None]
    expected.append(f"cost_usd {COST_USD}")
    if stored_status != status or (is_last and rows != expected):
        yield (
            f"slot {idx}, attempt {attempt} of {run_id} ended with {start.exit_status} in {name}, "
            f"and is {stored_status} with {rows}"
        )


@at_end("nothing is killed unless a person asks for it")
def _kills_are_asked_for(world: World) -> Iterator[str]:
    yield from (f"{name} was killed" for name in world.observed.killed)


@at_end("no more trials run at once than asked for")
def _concurrency_is_kept(world: World) -> Iterator[str]:
    yield from (f"{attempt} was started" for attempt in world.observed.too_many)


@at_end("a slot gets the attempts that its experiment says")
def _retries_are_as_told(world: World) -> Iterator[str]:
    retry = DESIGNS[world.design].get("retry", RETRY)
    ended: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    stopped: dict[int, set[int]] = defaultdict(set)
    for idx, attempt, status, reason in world.rows(
        "SELECT a.schedule_idx, a.attempt, a.status, a.reason FROM attempt a JOIN run ON "
        "run.run_no = a.run_no WHERE run.run_id = ? ORDER BY a.schedule_idx, a.attempt",
        RUN,
    ):
        is_retried = status in retry["retry_on"] and reason != "cancelled"
        if reason == "run_stopped":  # No limit counts it, and another attempt follows.
            stopped[idx].add(attempt)
            is_retried = True
        ended[idx].append((attempt, is_retried))
    for idx, attempts in ended.items():
        count = len(attempts)
        *earlier, last = [is_retried for _, is_retried in attempts]
        numbers = [number for number, _ in attempts]
        is_used_up = count - len(stopped[idx]) == retry["max_attempts"]
        is_enough = not last or (is_used_up and numbers[-1] not in stopped[idx])
        if numbers != [*range(1, count + 1)] or not all(earlier) or not is_enough:
            yield f"slot {idx} has the attempts {attempts}"


@at_end("pruning follows the schedule alone")
def _is_pruned_after_failures(world: World) -> Iterator[str]:
    limit = DESIGNS[world.design].get("prune", {}).get("max_consecutive_failures")
    in_row: Counter[int] = Counter()
    pruned: set[int] = set()
    for idx, variant, status in world.rows(
        "SELECT c.schedule_idx, slot.variant_idx, c.status FROM slot_commit c "
        "JOIN run ON run.run_no = c.run_no JOIN slot ON slot.run_no = c.run_no "
        "AND slot.schedule_idx = c.schedule_idx "
        "WHERE run.run_id = ? AND c.schedule_idx < ? ORDER BY c.schedule_idx",
        *(RUN, SLOTS),
    ):
        if status == "cancelled":
            continue
        if status == "skipped_pruned":
            if variant not in pruned:
                yield f"slot {idx} is pruned after {in_row[variant]} failures in a row"
            continue
        in_row[variant] = 0 if status == "completed" else in_row[variant] + 1
        if in_row[variant] == limit:
            pruned.add(variant)


@at_end(DURABLE)
def _verifies(world: World) -> Iterator[str]:
    report = verify_lab(world.lab, None)
    yield from (str(finding) for finding in report.findings)


@at_end("nothing is left behind")
def _nothing_left(world: World) -> Iterator[str]:
    for machine in world.engines.values():
        for container in machine.containers.values():
            yield f"container {container.name} is left, {container.status}"
    yield from world.left()
    for folder in ("trials", "traces", "incoming"):
        leftovers = sorted(
            path.name
            for path in world.lab.root.glob(f"runs/*/{folder}/*")
            if folder != "traces" or path.parts[-3] not in world.observed.may_be_back
        )
        if folder == "incoming":
            leftovers = [name for name in leftovers if name != "trial.sh"]
        if leftovers:
            yield f"{folder} holds {leftovers}"
    for (run_id,) in world.rows(
        "SELECT run.run_id FROM run JOIN lease ON lease.run_no = run.run_no"
    ):
        yield f"{run_id} is still owned"


@at_rest("mirrors hold nothing that is not committed")
def _mirrors_are_prefixes(world: World) -> Iterator[str]:
    if world.disk.locked_until > world.time.now:
        return
    for (run_id,) in world.rows("SELECT run_id FROM run"):
        yield from mirrors_are_prefixes(world.lab.root, world.lab.ledger, run_id)


def mirrors_are_prefixes(lab_root: Path, ledger: Path, run_id: str) -> Iterator[str]:
    """After a coordinator's death, each mirror is a prefix of the ledger's records."""
    with LedgerReader.open(ledger, ArtifactStore(lab_root / "artifacts")) as reader:
        for kind, relative in ALL_PATHS.items():
            path = lab_root / "runs" / run_id / relative
            if not path.exists():
                continue
            expected = b"".join(
                line.encode() + b"\n" for _, line in reader.record_lines(run_id, kind)
            )
            # Zeros are bytes that a power cut left unwritten. The next resume writes them.
            content = path.read_bytes().partition(b"\0")[0]
            whole = content[: content.rfind(b"\n") + 1]
            if not expected.startswith(whole):
                yield f"the mirror {relative} is no prefix of the ledger"


def connect(path: Path) -> sqlite3.Connection:
    """Open a separate connection to a ledger."""
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True)


def query(
    connection: sqlite3.Connection, sql: str, parameters: tuple[object, ...] = ()
) -> list[tuple[object, ...]]:
    """Return the rows of a query. While the ledger is locked, wait and ask again."""
    while True:
        try:
            return connection.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "lock" not in str(error):
                raise
            scheduler.world().sleep(1.0)
