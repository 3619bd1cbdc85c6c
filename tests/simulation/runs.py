"""A world with one lab, people and mishaps, all from one seed."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from labledger.errors import LabLedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.ledger.database import migrations
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.records.canonical_json import sha256_hex
from labledger.records.outcomes import RequestKind, StopCause
from labledger.runner import run_start
from labledger.runner.extend import extend_run
from labledger.runner.regrade import regrade_run
from labledger.runner.rerun import RerunSelection, choose_slots, rerun_slots
from labledger.runner.run_options import Placement, RunLimits, RunOptions, SourceOptions
from labledger.runner.run_outcome import RunOutcome
from labledger.trial.contract import ExitStatus
from labledger.upkeep import container_cleanup
from labledger.upkeep.garbage_collection import collect_garbage
from labledger.upkeep.verify_lab import verify_lab
from simulation import disk, engine, invariants, labs, scheduler, seam
from simulation.engine import Container, SimulatedEngine
from simulation.invariants import Observed, Start, Violation
from simulation.scheduler import Machine, Process, Scheduler

_LEASES_S = (3.0, 30.0)
LAST_FAULT_S = 60.0
"""The simulated seconds within which faults of the run begin."""
_STAGE_S = 15.0
"""The simulated seconds within which faults of later commands begin."""
FAULTS_END = scheduler.BEGINNING + 400.0
"""The simulated time after which nothing goes wrong, so that every run ends."""
_LAST_STAGE = FAULTS_END - 200.0
"""Until when a later command has faults, which last up to 150 seconds."""
_PATIENCE_S = 60.0
_DEADLY = (
    *("engine_create_answered", "engine_start_answered", "engine_remove_answered"),
    *("after COMMIT", "rename", "unlink"),
)
"""Points at which a kill leaves something half done that others see."""
_LIMIT_S = 900.0
"""The simulated seconds after the last fault within which a run must end."""
EVERYTHING = "everything"
"""Leaves out every mishap."""
UNIX_TIME = 1_780_000_000.0


Action = Callable[[RunOptions], RunOutcome]
"""A command: runs with options and returns an outcome."""


class World:
    """One lab on one machine, and everything that happens to it."""

    def __init__(
        self,
        seed: int,
        template: Path,
        folder: Path,
        design: str,
        left_out: Collection[str] = (),
    ) -> None:
        self.seed = seed
        self.left_out = left_out
        """The mishaps that do not happen."""
        self.mishaps: list[str] = []
        """The mishaps and interventions so far, each with its own name."""
        self.design = design
        self.time = Scheduler(seed)
        self.random = self.time.random
        self.machine = Machine("alpha", UNIX_TIME)
        self.lab = labs.copy(template, folder)
        self.template = template
        self.disk = disk.Disk(self.lab.root)
        self.engine = SimulatedEngine(self.machine)
        self.engines = {self.machine.name: self.engine}
        self.disks = [self.disk]
        self.lost: set[str] = set()
        """The hosts that were declared lost."""
        self.observed = Observed()
        self.events: Counter[str] = Counter()
        self.last_fault = scheduler.BEGINNING
        """When the last planned fault begins."""
        self.lease_s = self.random.choice(_LEASES_S)
        self.resume: Callable[[], object] = lambda: None
        """Resume the incomplete run."""
        self._max_error_rate: float | None = None
        """The error rate that people allow; None for the default."""
        self._stopped_by: set[str] = set()
        """How people have asked to stop the run."""
        self._parsed: dict[str, dict[int, list[dict[str, Any]]]] = {}
        """The records of evidence that were read last, by slot, with their text."""
        self._connection: Any = None
        """The connection of checks, because each new one would parse the schema again."""

    # -- what invariants ask

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        if self._connection is not None:
            return invariants.query(self._connection, sql, parameters)
        return self.fresh_rows(sql, *parameters)

    def fresh_rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Query on a separate connection."""
        with closing(invariants.connect(self.lab.ledger)) as connection:
            return invariants.query(connection, sql, parameters)

    def _check(self, checks: dict[str, invariants.Check], *, only: str = "") -> None:
        """Check guarantees on one connection, while no coordinator is alive."""
        with closing(invariants.connect(self.lab.ledger)) as self._connection:
            try:
                invariants.check(self, checks, only=only)
            finally:
                self._connection = None

    def evidence(self, run_id: str, idx: int, attempt: int) -> tuple[str | None, str | None]:
        """Return the container that the evidence of a committed attempt names, and its reason."""
        for record in self._records(run_id, idx):
            if record["attempt"] == attempt:
                return record.get("ext", {}).get("container"), None
        return None, "it has no evidence"

    def notes(self, run_id: str, idx: int, attempt: int) -> list[str]:
        for record in self._records(run_id, idx):
            if record["attempt"] == attempt:
                return list(record.get("ext", {}).get("notes", []))
        return []

    def _records(self, run_id: str, idx: int) -> list[dict[str, Any]]:
        path = self.lab.run_folder(run_id) / "evidence/evidence_records.jsonl"
        text = path.read_text("utf-8") if path.exists() else ""
        if text not in self._parsed:
            self._parsed = {text: defaultdict(list)}
            for record in map(json.loads, text.splitlines()):
                self._parsed[text][record["schedule_idx"]].append(record)
        return self._parsed[text][idx]

    # -- the world

    def run(self) -> None:
        """Let the world happen. Raises `Violation`, and `SimulationStuck`."""
        scheduler.enter(self.time)
        disk.disks().disks[:] = self.disks
        engine.engines.clear()
        engine.engines.update(self.engines)
        for machine_disk in self.disks:
            disk.settle(machine_disk)
        for simulated in self.engines.values():
            simulated.on_start, simulated.on_end = self._started, self._ended
            simulated.on_kill = self._killed
        seam.on_commit(self._committed)
        self.begin()
        self._plan_faults()
        self.time.at(FAULTS_END, self._disarm)
        self._operate()
        self.end()
        self._check(invariants.AT_END)
        if self.random.random() < 0.2 and self.happens("power-loss-at-the-end"):
            # Everything of an ended run is durable; deleted notes may be back.
            self._lose_power()
            self._check(invariants.AT_END, only=invariants.DURABLE)
        payloads = self.fresh_rows("SELECT payload_digest FROM slot_commit ORDER BY 1")
        digest = sha256_hex("".join(text for (text,) in payloads).encode())
        self.time.note(f"what is committed has the digest {digest}")

    def happens(self, mishap: str) -> bool:
        """Return whether a chosen mishap happens, or is left out."""
        name = f"{mishap}-{sum(earlier.startswith(f'{mishap}-') for earlier in self.mishaps) + 1}"
        self.mishaps.append(name)
        return not {name, EVERYTHING} & set(self.left_out)

    def begin(self) -> None:
        """Start everything beside the lab: nothing."""

    def end(self) -> None:
        """End everything beside the lab."""

    def left(self) -> list[str]:
        """Return leftovers outside the lab and its engine."""
        return []

    def _operate(self) -> None:
        """Complete the run. Then perhaps extend, rerun or regrade it."""
        self._complete(labs.RUN)
        further = [self._extend, self._rerun, self._regrade]
        self.random.shuffle(further)
        for stage in further[: self.random.choice((0, 0, 1, 2))]:
            if self.happens(_name_of(stage)):
                if self.time.now < _LAST_STAGE:
                    self._plan(self.random.choice((0, 1, 2)), _STAGE_S)
                stage()

    def _complete(self, run_id: str) -> None:
        """Resume a run until a single coordinator reports it as complete."""

        def resume(options: RunOptions) -> RunOutcome:
            return run_start.resume_run(run_id, options)

        end = max(self.time.now, FAULTS_END) + _LIMIT_S
        while self.time.now < end:
            self.resume = lambda: self._command(f"resume {run_id}", resume)
            is_disturbed = self.has_faults
            process, commands = self.resume(), self.events["commands"]
            if self.has_faults and self.random.random() < 0.15:
                # Another person wants the run as well.
                self.time.sleep(self.random.expovariate(1 / 5.0))
                if self.happens("second-resume"):
                    self.resume()
            while self.machine.living() and self.time.now < end:
                self.time.sleep(0.5)
            self._check(invariants.AT_REST)
            is_alone = self.events["commands"] == commands
            # A coordinator that died at its last step has left work to the next one.
            if is_alone and process.result is not None and process.result.complete:
                self.observed.complete.add(run_id)
                return
            if self._stopped_for_errors(process):
                # A person reads the message and allows the errors.
                self._max_error_rate = 1.0
            elif is_alone and not is_disturbed:
                raise Violation(
                    f"every run ends: {process.name} did not complete it, and nothing disturbed it"
                )
            self.time.sleep(self.random.choice((0.1, 2.0, 10.0, 30.0)))
        raise Violation(f"every run ends: {run_id} has not ended in time")

    def _stopped_for_errors(self, process: Process) -> bool:
        """Return whether a process stopped because of an error rate above the default."""
        stop = process.result.stop if process.result is not None else None
        is_for_errors = stop is not None and stop.cause == StopCause.ERROR_RATE
        return is_for_errors and self._max_error_rate is None

    def _until_registered(
        self, name: str, action: Action, is_registered: Callable[[], bool]
    ) -> None:
        """Repeat a command until it has stored what it adds."""
        end = max(self.time.now, FAULTS_END) + _LIMIT_S
        while not is_registered():
            if self.time.now > end:
                raise Violation(f"every run ends: {name} has not begun in time")
            self._command(name, action)
            while self.machine.living() and self.time.now < end:
                self.time.sleep(0.5)

    def _extend(self) -> None:
        slots = self._slots()
        more = self.template / "more" / "experiment.yaml"
        self._until_registered(
            "extend",
            lambda options: extend_run(labs.RUN, more, options),
            lambda: self._slots() > slots,
        )
        self._complete(labs.RUN)

    def _rerun(self) -> None:
        slots = self._slots()
        selection = RerunSelection(tasks=("task-1",), despite_verdict=True, because="a simulation")

        def rerun(options: RunOptions) -> RunOutcome:
            with LedgerReader.open(self.lab.ledger) as reader:
                plan = choose_slots(reader, labs.RUN, selection)
            return rerun_slots(plan, options)

        self._until_registered("rerun", rerun, lambda: self._slots() > slots)
        self._complete(labs.RUN)

    def _regrade(self) -> None:
        grader = self.template / "experiment" / "other" / "grader.py"
        self._until_registered(
            "regrade",
            lambda options: regrade_run(labs.RUN, grader, options),
            lambda: bool(self.rows("SELECT 1 FROM run WHERE run_id = ?", f"{labs.RUN}.g2")),
        )
        self._complete(f"{labs.RUN}.g2")
        status = "SELECT status FROM schedule_progress JOIN run USING (run_no) WHERE run_id = ?"
        if self.rows(status, labs.RUN) != [("complete",)]:
            # A person resumed the regraded run, and the resume failed.
            self._complete(labs.RUN)

    def _slots(self) -> int:
        count = "SELECT count(*) FROM slot JOIN run ON run.run_no = slot.run_no WHERE run_id = ?"
        return int(self.rows(count, labs.RUN)[0][0])

    def _command(self, name: str, action: Action) -> Process:
        """Start a command in a new process."""
        number = self.events["commands"]
        self.events["commands"] += 1
        process = Process(self.time, self.machine, f"{name}-{number}")
        process.on_death.append(lambda: disk.disks().forget(process))
        self._maybe_kill(process)
        options = RunOptions(
            lab_dir=self.lab.root,
            source=SourceOptions(frozen=True),
            placement=Placement(lease_ttl_s=self.lease_s, take_over=self.random.random() < 0.3),
            limits=RunLimits(
                patience_s=_PATIENCE_S,
                max_error_rate=self._max_error_rate,
                budget_usd=1000.0 if self.design == "budget" and number > 1 else None,
            ),
            max_concurrency=self.random.choice((1, 2, 4, 8)),
            on_event=self._emitted,
            notify=("true",),
        )
        process.at_most = options.max_concurrency
        if self.has_faults and self.random.random() < 0.15 and self.happens("ctrl-c"):
            stop = options.stop_request
            levels = self.random.choice((1, 2))
            self._stopped_by.add("ctrl-c")
            self.observed.kills_are_asked_for |= levels == 2 or len(self._stopped_by) == 2
            for _ in range(levels):
                delay = self.random.expovariate(1 / 5.0)
                self.time.after(delay, lambda: stop.raise_level("a person"))
            if levels == 2 and self.random.random() < 0.5:
                # A person who asks twice may lose patience while containers are removed.
                process.dies_at_name = ("engine_remove_answered", self.random.randrange(8))

        def main() -> None:
            try:
                process.result = action(options)
                is_complete, stop = process.result.complete, process.result.stop
                self.time.note(f"ended, {'complete' if is_complete else f'not complete: {stop}'}")
                if not is_complete and stop is None:
                    raise Violation(f"every run ends: {process.name} gave up without a reason")
            except LabLedgerError as error:
                self.time.note(f"{type(error).__name__}: {error.message[:150]}")
                process.exit = error
            except OSError as error:
                self.time.note(f"{type(error).__name__}: {error}")
                process.exit = error
            except Exception as error:
                self.time.fail(error)
            finally:
                self.time.kill(process)

        self.time.note(f"starts {process.name}")
        self.time.spawn(process, "main", main)
        return process

    @property
    def has_faults(self) -> bool:
        return self.time.now < FAULTS_END

    # -- faults

    def _maybe_kill(self, process: Process) -> None:
        if self.has_faults and self.random.random() < 0.5 and self.happens("death"):
            if self.random.random() < 0.7:
                process.dies_at = round(self.random.lognormvariate(6.5, 1.3)) + 1
            else:
                process.dies_at_name = self.random.choice(_DEADLY), self.random.randrange(20)

    def _plan_faults(self) -> None:
        if self.random.random() < 0.2 and self.happens("early-pause"):
            # Most trials that are prepared and wait for their start do so as a run begins.
            moment = self.random.uniform(0, 4)
            pauses = [
                request for request in self.possible_requests() if request[0] is RequestKind.PAUSE
            ]
            self.time.after(moment, partial(self._ask_for, *self.random.choice(pauses)))
        self._plan(self.random.choice((0, 1, 2, 4, 8)), LAST_FAULT_S)

    def _plan(self, count: int, within_s: float) -> None:
        """Let faults begin in the next seconds."""
        kinds = self.fault_kinds()
        for _ in range(count):
            moment, kind = self.random.uniform(0, within_s), self.random.choice(kinds)
            if self.happens(_name_of(kind)):
                self.last_fault = max(self.last_fault, self.time.now + moment)
                self.time.after(moment, kind)

    def _disarm(self) -> None:
        """Cancel all faults that wait for their step."""
        for machine_disk in self.disks:
            machine_disk.fails_at.clear()
            machine_disk.steps_after_failure = None
        for simulated in self.engines.values():
            simulated.fails_after.clear()

    def fault_kinds(self) -> list[Callable[[], None]]:
        return [
            self._lose_power,
            self._kill_now,
            self._pause,
            self._engine_away,
            self._engine_fails,
            self._engine_refuses,
            self._engine_forgets,
            self._fill_disk,
            self._fail_disk,
            self._lock_ledger,
            self._set_clock,
            *[self._ask] * 3,
            *[self._look_after] * 2,
        ]

    def _coordinators(self) -> list[Process]:
        return self.machine.living()

    def count(self, kind: str) -> None:
        self.events[kind] += 1
        self.time.note(f"fault: {kind}")

    def _kill_now(self) -> None:
        self.count("kill")
        for process in self._coordinators():
            process.dies_at = process.steps + self.random.randrange(200)

    def _lose_power(self) -> None:
        self.count("power loss")
        self.lose_power_of(self.machine, self.disk, self.engine)

    def lose_power_of(self, machine: Machine, of: disk.Disk, its_engine: SimulatedEngine) -> None:
        for process in machine.living():
            self.time.kill(process)
        machine.boot += 1
        self.observed.may_be_back |= self.observed.complete
        folders = set(of.root.glob("runs/**/trials/*"))
        disk.lose_power(of)
        for folder in folders - set(of.root.glob("runs/**/trials/*")):
            idx, attempt = map(int, folder.name.split("-"))
            for start in self.observed.starts.get((folder.parts[-3], idx, attempt), ()):
                start.was_removed = True
        # No process synced the files of containers, so the power cut may lose them.
        for container in its_engine.containers.values():
            self._excuse(container)
        its_engine.lose_power()

    def _pause(self) -> None:
        self.count("pause")
        seconds = self.random.choice((1.0, 10.0, 45.0, 120.0))
        for process in self._coordinators():
            process.paused_until = self.time.now + seconds
        if self.random.random() < 0.5:
            # A person believes that the run is dead.
            self.time.after(self.random.uniform(0, seconds), lambda: self.resume())

    def _engine_away(self) -> None:
        self.count("engine away")
        self.engine.go_away(self.random.choice((0.01, 0.5, 5.0, 30.0, 90.0)))

    def _engine_fails(self) -> None:
        self.count("engine error")
        self.engine.fails_after += self.random.choices(("create", "start", "remove"), k=2)

    def _engine_refuses(self) -> None:
        self.count("engine refuses")
        self.engine.refuses = True
        self.time.after(self.random.choice((1.0, 20.0, 80.0)), self._engine_recovers)

    def _engine_recovers(self) -> None:
        self.engine.refuses = False

    def _engine_forgets(self) -> None:
        self.remove_container_of(self.engine)

    def remove_container_of(self, its_engine: SimulatedEngine) -> None:
        containers = list(its_engine.containers.values())
        if containers:
            self.count("container removed")
            container = self.random.choice(containers)
            self._excuse(container)
            its_engine.remove(container.container_id)

    def _excuse(self, container: Container) -> None:
        """Note that a container's work may be lost."""
        for start in self.observed.starts.get(container.attempt or ("", 0, 0), ()):
            start.was_removed = True

    def _fill_disk(self) -> None:
        self.count("disk full")
        self.disk.is_full = True
        self.time.after(self.random.choice((1.0, 20.0, 90.0)), self._empty_disk)

    def _empty_disk(self) -> None:
        self.disk.is_full = False

    def _fail_disk(self) -> None:
        kind = self.random.choice(("write", "sync", "fsync", "fsync of a mirror"))
        self.count(f"EIO at {kind}")
        self.disk.fails_at[kind] = self.random.randrange(5)
        if self.random.random() < 0.3 and self.happens("power-loss-after-error"):
            # Only a power cut removes the data whose sync failed.
            self.time.after(self.random.choice((0.5, 5.0, 20.0)), self._lose_power)
        # A separate random source: known seeds without such an error keep their worlds.
        chance = random.Random(self.time.now)
        if kind == "sync" and chance.random() < 0.8 and self.happens("death-after-error"):
            # The process writes the log again if it lives on, and the next one may not know better.
            self.disk.steps_after_failure = chance.randrange(8)
            self.time.after(chance.choice((2.0, 5.0, 10.0)), self._lose_power)

    def _lock_ledger(self) -> None:
        self.count("ledger locked")
        self.disk.locked_until = self.time.now + self.random.choice((0.5, 10.0, 28.0, 45.0))

    def _set_clock(self) -> None:
        self.count("clock set")
        self.machine.unix_time += self.random.choice((-3600.0, -20.0, 20.0, 3600.0))

    # -- what people ask from elsewhere

    def _ask(self) -> None:
        """Send a request to the run, and end a pause after a while."""
        self._ask_for(*self.random.choice(self.possible_requests()))

    def _ask_for(self, kind: RequestKind, what: dict[str, Any]) -> None:
        self.count(f"asked to {kind.value}")
        delay = self.random.choice((1.0, 15.0, 60.0))

        def go_on() -> None:
            if kind is RequestKind.PAUSE:
                goes_on = partial(self._request, RequestKind.UNPAUSE, {"all": True})
                self.time.after(delay, goes_on)
            if self.random.random() < 0.4 and self.happens("death-after-request"):
                # A request and a death rarely meet by chance.
                self.time.after(self.random.choice((0.0, 0.5, 3.0)), self._kill_now)

        if kind is RequestKind.STOP:
            self._stopped_by.add("stop")
        # One Ctrl-C after a stop from elsewhere is the second one.
        self.observed.kills_are_asked_for |= (
            kind is RequestKind.CANCEL or bool(what.get("now")) or len(self._stopped_by) == 2
        )
        if "max_concurrency" in what:
            self.observed.at_most.append(what["max_concurrency"])
        self._request(kind, what, go_on)

    def possible_requests(self) -> list[tuple[RequestKind, dict[str, Any]]]:
        return [
            (RequestKind.PAUSE, {}),
            (RequestKind.PAUSE, {"variant": [self.random.choice(labs.VARIANTS)]}),
            (RequestKind.PAUSE, {"task": [f"task-{self.random.randrange(labs.TASKS)}"]}),
            (RequestKind.SET, {"max_concurrency": self.random.choice((1, 2, 8))}),
            (RequestKind.CANCEL, {"slot": [self.random.randrange(labs.SLOTS)]}),
            (RequestKind.CANCEL, {"variant": [self.random.choice(labs.VARIANTS)]}),
            (RequestKind.STOP, {"now": self.random.random() < 0.5}),
        ]

    def _request(
        self,
        kind: RequestKind,
        what: dict[str, Any],
        when_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a request, and repeat it until it succeeds."""

        def write() -> object:
            with LedgerWriter.open(self.lab.ledger, ArtifactStore(self.lab.artifacts)) as writer:
                return writer.add_request(labs.RUN, kind, what, "a person")

        process = self.in_process(f"{kind.value}-{self.events['requests']}", write)
        self.events["requests"] += 1
        process.on_death.append(lambda: when_written() if process.result is not None else None)

        def again() -> None:
            if process.result is None:
                self._request(kind, what, when_written)

        self.time.after(60.0, again)

    def in_process(self, name: str, act: Callable[[], object]) -> Process:
        """Let a person do something in a new process, which keeps the result."""
        process = Process(self.time, self.machine, name)
        process.on_death.append(lambda: disk.disks().forget(process))

        def main() -> None:
            try:
                process.result = act()
            except (LabLedgerError, OSError) as error:
                self.time.note(f"{type(error).__name__}: {str(error)[:150]}")
            except Exception as error:
                self.time.fail(error)
            finally:
                self.time.kill(process)

        self.time.spawn(process, "main", main)
        return process

    # -- how people look after the lab meanwhile

    def _look_after(self) -> None:
        """Verify, copy or clean the lab, whatever else happens in it."""
        name, act = self.random.choice(
            (
                ("verify", self._verify),
                ("gc", lambda: collect_garbage(self.lab)),
                ("clean", lambda: container_cleanup.clean(self.lab)),
                ("backup", self._back_up),
            )
        )
        self.count(f"{name} beside the run")
        self._maybe_kill(self.in_process(f"{name}-{self.events['looked after']}", act))
        self.events["looked after"] += 1

    def _verify(self) -> None:
        """Verify the lab. Missing lines of mirrors are allowed: the next owner appends them."""
        findings = verify_lab(self.lab, None).findings
        wrong = [finding for finding in findings if "regenerates it" not in finding]
        if wrong:
            raise Violation(f"{invariants.DURABLE}: {wrong}")

    def _back_up(self) -> None:
        copy = self.lab.root / f"copy-{self.events['looked after']}.sqlite"
        migrations.backup(self.lab.ledger, copy)

    # -- what is seen

    def _started(self, container: Container) -> tuple[float, int]:
        key = container.attempt
        is_agent = container.starts == 1 or container.parts == 1
        if key is not None and is_agent:
            by = self.time.current.process.name
            self.time.note(f"container of slot {key[1]}-{key[2]} starts")
            self._count_running(container)
            if key[0] == labs.RUN and not self.observed.starts[key]:
                self.check_first_start(key, by)
            self.observed.starts[key].append(Start(container.container_id, self.time.now, by))
        lasts = self.random.choice((0.05, 0.5, 2.0, 8.0))
        status = ExitStatus.GRADED
        # Variants are pruned after failures in a row.
        if self.random.random() < (0.5 if self.design == "pruned" else 0.2):
            status = self.random.choice(
                (ExitStatus.AGENT_FAILED, ExitStatus.GRADER_FAILED, ExitStatus.SETUP_FAILED, 137)
            )
        elif container.starts < container.parts:
            status = ExitStatus.AGENT_ENDED
        return lasts, status

    def _count_running(self, container: Container) -> None:
        """Note a trial that starts although the limit of this process or of a person is reached.

        After a resume with a lower limit, the trials of the earlier process still run.
        """
        process = self.time.current.process
        run_id = (container.attempt or ("",))[0]
        running = [
            simulated
            for simulated in self.engines[process.machine.name].containers.values()
            if simulated.status == "running" and (simulated.attempt or ("",))[0] == run_id
        ]
        limits = [process.at_most or 0]
        limits += self.observed.at_most if process.machine is self.machine else []
        if len(running) >= max(limits):
            self.observed.too_many.append(f"{container.name} as one of {len(running) + 1}")

    def _killed(self, container: Container) -> None:
        if container.attempt is not None and not self.observed.kills_are_asked_for:
            self.observed.killed.append(container.name)

    def check_first_start(self, key: tuple[str, int, int], host: str) -> None:
        """Check that an attempt may be started by the process of a host."""

    def _emitted(self, event: dict[str, Any]) -> None:
        """Check that no pause of dispatch is longer than the patience of its run."""
        is_over = event["event"] == "dispatch_resumed" and event["cause"] in ("engine", "disk")
        if is_over and event["seconds"] > _PATIENCE_S + 0.1:
            problem = f"every run ends: it waited {event['seconds']} s ({event['cause']})"
            self.time.fail(Violation(problem))

    def _ended(self, container: Container) -> None:
        key = container.attempt
        if key is not None:
            # An agent's part that has ended waits for the grader's, which a person may end.
            by_others = (137, 255, ExitStatus.AGENT_ENDED)
            is_whole = container.exit_status not in by_others
            last = self.observed.starts[key][-1]
            last.ended_by_itself, last.exit_status = is_whole, container.exit_status

    def _committed(self, connection: Any, only_renews: bool) -> None:
        """Check the guarantees after each transaction, on the connection that committed it.

        Another one would keep the log from being emptied. Almost half of the transactions only
        renew a lease: after these, only leases are checked.
        """
        only = invariants.LEASES if only_renews else ""
        self._connection = connection
        # In one transaction the log is locked for reading once.
        connection.execute("BEGIN")
        try:
            invariants.check(self, invariants.AFTER_COMMIT, only=only)
        except Violation as violation:
            self.time.fail(violation)
        finally:
            self._connection = None
            connection.execute("COMMIT")


def _name_of(method: Callable[[], None]) -> str:
    return method.__name__.strip("_").replace("_", "-")
