"""Reads a trial's output and events, stored or live.

Live files are untrusted and may contain secrets. This module redacts the secrets that the engine
reports for the trial's container. If no engine reports them, it shows nothing until the trial is
collected. It writes nothing and does not touch the container.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from labledger import clock
from labledger.engine.engine import API_TIMEOUT_S, Engine
from labledger.engine.engine_errors import ContainerFailed
from labledger.errors import EngineUnavailable, InvalidInput, Parameter, Problem, SecretsUnknown
from labledger.experiment.plan import ExperimentPlan
from labledger.files.untrusted_files import UnsafeFile, UntrustedFile
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject
from labledger.records.attempt_result import digest_of
from labledger.trajectories.agent_document import AgentDocument
from labledger.trajectories.step_text import conversation, cut_notice, stored_cuts
from labledger.trial import contract
from labledger.trial.evidence.redaction import RedactedStream, Redactor

_STREAMS = ("stdout", "stderr")
STEPS = "steps"
"""The name of the trajectory's steps among the outputs of a trial."""
_NOT_PHASES = ("events", STEPS)
_CHUNK = 64 * 1024
_POLL_S = 0.25
_LOOK_S = 1.0
"""How often to check in the ledger whether the trial has been collected, in seconds."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A piece of one output of a trial. Pieces of the same output come in their order."""

    name: str
    """`agent_stdout`, `grader_stderr`, …, `events`, or `steps`."""
    content: bytes


def read_logs(
    reader: LedgerReader,
    run_folder: Path,
    run_id: str,
    schedule_idx: int,
    phases: Sequence[str] = (),
    *,
    follow: bool = False,
) -> Iterator[LogPiece]:
    """Yield the outputs of a slot's trial; with `follow`, until the trial has been collected.

    `phases` selects from `setup`, `agent`, `grader`, `events` and `steps`; empty selects the three
    phases. Steps are the trajectory as text, available once the trial has been collected. With
    `follow`, this waits for a slot that has not been dispatched yet.

    Raises `InvalidInput` for an unknown phase, and `SlotNotFound`.
    """
    names = _names(phases)
    reader.slot(run_id, schedule_idx)
    live = _LiveOutputs(reader, run_folder, run_id, schedule_idx, names)
    return _read(live, follow=follow)


def _names(phases: Sequence[str]) -> list[str]:
    valid = (*contract.PHASE_NAMES, *_NOT_PHASES)
    unknown = [phase for phase in phases if phase not in valid]
    if unknown:
        problem = Problem(
            Parameter("phases"), f"found {unknown[0]!r}; expected one of {', '.join(valid)}"
        )
        raise InvalidInput("the phase", [problem])
    chosen = phases or contract.PHASE_NAMES
    names = [f"{p}_{stream}" for p in chosen if p not in _NOT_PHASES for stream in _STREAMS]
    return [*names, *(name for name in _NOT_PHASES if name in chosen)]


def _read(live: _LiveOutputs, *, follow: bool) -> Iterator[LogPiece]:
    looked_at, collected = -_LOOK_S, False
    with live.files:
        while True:
            if clock.monotonic() - looked_at >= _LOOK_S or not follow:
                looked_at, collected = clock.monotonic(), live.is_collected()
            # Read after the check, so that the output of a collected trial is complete.
            yield from live.new_pieces(is_last=collected)
            if collected or not follow:
                break
            clock.sleep(_POLL_S)
        # The folder may have gone before a late output, such as the grader's, could be opened.
        is_stored = collected or (not follow and live.awaits_attempt())
        if is_stored and (unread := [name for name in live.names if name not in live.opened]):
            yield from _stored_pieces(live, unread)


def _stored_pieces(live: _LiveOutputs, names: Sequence[str]) -> Iterator[LogPiece]:
    """Yield stored outputs of the slot's last attempt."""
    evidence = live.stored_evidence()
    references = evidence.get("evidence", {})
    for name in names:
        reference = references.get("trajectory" if name == STEPS else name)
        if reference is None:
            continue
        if name != STEPS:
            yield LogPiece(name, live.reader.artifact(digest_of(reference)))
            continue
        if cuts := stored_cuts(evidence):
            yield LogPiece(name, f"{cut_notice(cuts)}\n\n".encode("utf-8", "replace"))
        with live.reader.open_artifact(digest_of(reference)) as document:
            for text in conversation(AgentDocument(document).steps()):
                yield LogPiece(name, text.encode("utf-8", "replace"))


@dataclass
class _LiveOutputs:
    """The output files of a slot's newest attempt, each opened once and read as it grows."""

    reader: LedgerReader
    run_folder: Path
    run_id: str
    schedule_idx: int
    names: Sequence[str]
    files: ExitStack = field(default_factory=ExitStack)
    opened: dict[str, BinaryIO] = field(default_factory=dict)
    """The opened outputs of the newest attempt, by name."""
    _attempt: int = 0
    """The attempt being read; 0 before the first dispatch."""
    _newest_attempt: int = 0
    _streams: dict[str, RedactedStream] = field(default_factory=dict)
    _redactor: Redactor = field(default_factory=lambda: Redactor({}))
    _is_collected: bool = False

    def is_collected(self) -> bool:
        """Return whether the slot's result is committed or staged. Updates the newest attempt."""
        self._is_collected = self._look()
        return self._is_collected

    def _look(self) -> bool:
        reader, idx = self.reader, self.schedule_idx
        if reader.run(self.run_id).next_schedule_idx > idx:
            return True
        dispatch = reader.last_dispatches(self.run_id, idx).get(idx)
        if dispatch is not None:
            self._newest_attempt = dispatch.attempt
        staged = reader.staged(self.run_id).get(idx)
        return staged is not None and staged.final

    def awaits_attempt(self) -> bool:
        """Return whether the newest attempt is stored and the slot will be attempted again."""
        staged = self.reader.staged(self.run_id).get(self.schedule_idx)
        return staged is not None and staged.attempt >= self._newest_attempt

    def stored_evidence(self) -> JsonObject:
        """Return the evidence record of the last attempt; empty if there is none."""
        records = next(
            self.reader.slot_records(self.run_id, self.schedule_idx, self.schedule_idx + 1),
            None,
        )
        if records is not None:
            evidence = records.objects("evidence")
        else:
            result = self.reader.staged_result(self.run_id, self.schedule_idx)
            evidence = list(result.evidence) if result is not None else []
        return evidence[-1] if evidence else {}

    def new_pieces(self, *, is_last: bool) -> Iterator[LogPiece]:
        """Yield new output since the last call, redacted.

        The possible beginning of a secret is held back until more output follows or `is_last` is
        set. The end of an attempt's output comes before the output of the next attempt.
        """
        if self._attempt != self._newest_attempt:
            if self._attempt:
                yield from self._pieces_of_attempt(is_last=True)
            self.files.close()
            self.opened, self._attempt = {}, self._newest_attempt
        yield from self._pieces_of_attempt(is_last=is_last)

    def _pieces_of_attempt(self, *, is_last: bool) -> Iterator[LogPiece]:
        for name in self.names:
            file = self._file(name)
            if file is None:
                continue
            stream = self._streams[name]
            while content := file.read(_CHUNK):
                if shown := stream.write(content):
                    yield LogPiece(name, shown)
            if is_last and (rest := stream.end()):
                yield LogPiece(name, rest)

    def _file(self, name: str) -> BinaryIO | None:
        if name in self.opened or not self._attempt or name == STEPS:
            return self.opened.get(name)
        folder = contract.trial_folder(self.run_folder, self.schedule_idx, self._attempt)
        file_name = contract.EVENTS if name == "events" else name.replace("_", ".")
        # A missing folder or an irregular file has no output to show.
        with suppress(UnsafeFile):
            file = self.files.enter_context(UntrustedFile(folder / "state", file_name).opened())
            if file is not None and self._knows_secrets():
                self.opened[name], self._streams[name] = file, RedactedStream(self._redactor)
        return self.opened.get(name)

    @cached_property
    def _required(self) -> Collection[str]:
        return required_secrets(self.reader, self.run_id)

    def _knows_secrets(self) -> bool:
        """Make the redactor of this attempt before its first output is shown.

        Returns False if its container is gone because the trial has been collected. Raises
        `SecretsUnknown` if the engine does not report the secrets for another reason.
        """
        if self.opened or not self._required:
            return True
        try:
            self._redactor = redactor_of_trial(
                self.reader, self.run_id, self.schedule_idx, self._attempt, self._required
            )
        except SecretsUnknown:
            if self._is_collected or self.is_collected():
                return False
            raise
        return True


def required_secrets(reader: LedgerReader, run_id: str) -> Collection[str]:
    """Return the names of the secrets that a run passes to its containers."""
    return ExperimentPlan.of_document(reader.run(run_id).resolved).environment


def redactor_of_trial(
    reader: LedgerReader,
    run_id: str,
    schedule_idx: int,
    attempt: int,
    required: Collection[str],
    timeout_s: int = API_TIMEOUT_S,
) -> Redactor:
    """Return the redactor for the output of an attempt that runs on this machine.

    The engine reports the secrets in the attempt's container. Raises `SecretsUnknown` if one of the
    `required` secrets is missing. Its cause is `EngineUnavailable` if the engine does not answer
    within `timeout_s` seconds.
    """
    values: dict[str, str] = {}
    unavailable = None
    if required:
        labels = {
            contract.Labels.LEDGER: reader.ledger_id,
            contract.Labels.RUN: run_id,
            contract.Labels.SLOT: str(schedule_idx),
            contract.Labels.ATTEMPT: str(attempt),
        }
        try:
            values = _values_in_containers(labels, required, timeout_s)
        except EngineUnavailable as error:
            unavailable = error
    unknown = sorted(set(required) - values.keys())
    if unknown:
        names = ", ".join(f"${name}" for name in unknown)
        raise SecretsUnknown(
            f"trial {schedule_idx} is not collected yet, and its output may show the values of "
            f"{names}: no engine here has its container, so they cannot be redacted",
            hint="set DOCKER_HOST as for the run, or read the output when the trial has ended",
        ) from unavailable
    return Redactor(values)


def _values_in_containers(
    labels: dict[str, str], required: Collection[str], timeout_s: int
) -> dict[str, str]:
    """Return the values of secrets in the containers with these labels."""
    variables = contract.secret_variables(required)
    values: dict[str, str] = {}
    with closing(Engine(timeout_s=timeout_s)) as engine, suppress(ContainerFailed):
        for container in engine.containers_with_labels(labels):
            carried = engine.environment(container.container_id)
            values |= {
                name: carried[variable]
                for name, variable in variables.items()
                if variable in carried
            }
    return values
