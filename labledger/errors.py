"""Every exception that labledger raises on purpose.

All derive from `LabLedgerError`. Each class has an exit code for commands, and each instance a
message and often a hint. The docstring of a class is its default message. Errors of the engine, the
database driver and the operating system are converted to these where they arise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from labledger.exit_codes import Exit

__all__ = [
    "AlreadyGraded",
    "ArtifactChanged",
    "DiskFull",
    "EngineUnavailable",
    "Exit",
    "ExperimentChanged",
    "ExtraMissing",
    "HostLost",
    "ImageBuildsStopped",
    "InvalidInput",
    "LabLedgerError",
    "LeaseHeld",
    "LeaseLost",
    "LedgerDamaged",
    "LedgerDiskFull",
    "LedgerError",
    "LedgerMissing",
    "LedgerOutdated",
    "LedgerReplaced",
    "LedgerTooNew",
    "MalformedJson",
    "NotALedger",
    "NothingToExtend",
    "Parameter",
    "PermissionNeeded",
    "PreflightFailed",
    "Problem",
    "QueryFailed",
    "RequestRefused",
    "RunExists",
    "RunNotComplete",
    "RunNotFound",
    "SchemaInvalid",
    "SecretsUnknown",
    "SlotNotFound",
    "TakeoverStopped",
]


class LabLedgerError(Exception):
    """labledger could not do what was requested."""

    exit_code: Exit = Exit.INVALID

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.hint = hint

    @property
    def message(self) -> str:
        return str(self.args[0])


class Parameter(str):
    """The name of a library parameter, as the place of a problem.

    The command line shows the option of the parameter instead. In sentences, a parameter is written
    as an argument in backticks, such as `frozen=True`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in the user's input, or one failed check of preflight."""

    where: str
    """The file as the user named it, the `Parameter`, or the name of the check."""
    message: str
    """The found and the expected value."""
    line: int | None = None
    """The line in the file, counted from 1."""
    field: str | None = None
    """The dotted path of the field, such as ``runtime.agent.command[0]``."""
    hint: str | None = None
    """The suggested next step."""

    def __str__(self) -> str:
        location = self.where if self.line is None else f"{self.where}:{self.line}"
        head = f"{location}: {self.field}: " if self.field else f"{location}: "
        if not self.hint:
            return f"{head}{self.message}"
        tail = f"\n    → {self.hint}" if "\n" in self.message else f" ({self.hint})"
        return f"{head}{self.message}{tail}"


_MAX_ALIKE = 3


def said_once(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems, with many equal problems of a file merged into the first of them."""
    all_problems = list(problems)
    alike: dict[tuple[str, str | None, str], list[Problem]] = {}
    for problem in all_problems:
        alike.setdefault((problem.where, problem.field, problem.message), []).append(problem)
    listed: list[Problem] = []
    for problem in all_problems:
        group = alike[problem.where, problem.field, problem.message]
        last = group[-1]
        if len(group) <= _MAX_ALIKE or last.line is None:
            listed.append(problem)
        elif problem is group[0]:
            more = f"(also in {len(group) - 1:,} more rows, the last in line {last.line})"
            listed.append(replace(problem, message=f"{problem.message} {more}"))
    return listed


class InvalidInput(LabLedgerError):
    """The input is not valid."""

    MAX_LISTED = 20
    """How many problems the message lists; `problems` holds all of them."""

    def __init__(self, subject: str, problems: list[Problem], *, hint: str | None = None) -> None:
        count = f"{len(problems)} problem" + ("" if len(problems) == 1 else "s")
        lines = "\n".join(f"  {problem}" for problem in problems[: self.MAX_LISTED])
        if len(problems) > self.MAX_LISTED:
            lines += f"\n  and {len(problems) - self.MAX_LISTED} more"
        super().__init__(f"{subject}: {count}\n{lines}", hint=hint)
        self.subject = subject
        self.problems = problems


class PermissionNeeded(InvalidInput):
    """The input asks for an action that the user has not allowed."""

    def __init__(
        self,
        subject: str,
        problems: list[Problem],
        *,
        hint: str | None = None,
        needed: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(subject, problems, hint=hint)
        self.needed = needed
        """Each `Permission`, one for each problem."""


MAX_REASON = 1_000
"""The largest number of characters of the reason that a user gives for a request or a part."""


def text_problems(where: str, text: str, max_characters: int) -> list[Problem]:
    """Return the problems of a text that a user gives: empty, too long, or not UTF-8."""
    problems = []
    characters = len(text) if text.strip() else 0
    if not 0 < characters <= max_characters:
        message = f"found {characters:,} characters; expected a text of at most {max_characters:,}"
        problems.append(Problem(where, message))
    try:
        text.encode()
    except UnicodeEncodeError:
        problems.append(Problem(where, "found bytes that are not UTF-8; expected text"))
    return problems


def require_text(what: str, where: str, text: str, max_characters: int) -> None:
    """Raise `InvalidInput` for a text with `text_problems`. `what` and `where` name it."""
    if problems := text_problems(where, text, max_characters):
        raise InvalidInput(what, problems)


class MalformedJson(LabLedgerError):
    """The bytes are not JSON that labledger accepts."""


class SchemaInvalid(LabLedgerError):
    """A record does not match its schema."""

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class PreflightFailed(LabLedgerError):
    """A check before the run failed; nothing has been created."""

    exit_code = Exit.INCOMPLETE

    def __init__(self, problems: list[Problem], *, exit_code: Exit = Exit.INCOMPLETE) -> None:
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"the checks before the run failed; nothing has been created\n{lines}")
        self.problems = problems
        self.exit_code = exit_code


class ImageBuildsStopped(LabLedgerError):
    """The builds of images were stopped; no run has been created."""

    exit_code = Exit.INTERRUPTED


class EngineUnavailable(LabLedgerError):
    """The Docker engine does not answer."""

    exit_code = Exit.INCOMPLETE


class DiskFull(LabLedgerError):
    """A disk has no free space left."""

    exit_code = Exit.INCOMPLETE


class HostLost(LabLedgerError):
    """The host of a trial was declared lost; the run refuses its results."""

    exit_code = Exit.INCOMPLETE


class LedgerError(LabLedgerError):
    """The ledger could not be used."""

    exit_code = Exit.INCOMPLETE


class ArtifactChanged(LedgerError):
    """A file of the artifact store was changed."""


class LedgerMissing(LedgerError):
    """There is no ledger at this path."""

    exit_code = Exit.INVALID


class NotALedger(LedgerError):
    """The file is not a ledger of labledger."""


class LedgerDamaged(LedgerError):
    """The ledger's file is damaged."""


class LedgerOutdated(LedgerError):
    """The ledger was written by an older labledger; `labledger db upgrade` brings it up to date."""


class LedgerTooNew(LedgerError):
    """The ledger was written by a newer labledger; install that version or a later one."""


class LedgerDiskFull(LedgerError, DiskFull):
    """The ledger's disk is full; nothing was written."""


class RunNotFound(LedgerError):
    """The ledger holds no such run."""

    exit_code = Exit.INVALID


class RequestRefused(LabLedgerError):
    """The run's current state does not allow a request, such as stopping a run without an owner."""


class SlotNotFound(LedgerError):
    """The run has no such slot."""

    exit_code = Exit.INVALID


class RunExists(LedgerError):
    """The ledger already holds a run with that id."""

    exit_code = Exit.INVALID


class RunNotComplete(LedgerError):
    """Only a run whose slots are all committed can be regraded."""

    exit_code = Exit.INVALID


class AlreadyGraded(LedgerError):
    """The grader has graded the run before."""

    exit_code = Exit.INVALID


class NothingToExtend(LedgerError):
    """The run already has every cell of the experiment."""

    exit_code = Exit.INVALID


class ExperimentChanged(LabLedgerError):
    """The experiment is no longer the one that the run was started with."""


class LeaseHeld(LedgerError):
    """Another coordinator owns this run."""


class LeaseLost(LedgerError):
    """Another coordinator has taken over this run; nothing more was written."""


class LedgerReplaced(LeaseLost):
    """The ledger's file was removed or replaced while this process wrote to it."""


class TakeoverStopped(LabLedgerError):
    """The wait for a run was stopped; nothing was changed."""

    exit_code = Exit.INTERRUPTED


class QueryFailed(LedgerError):
    """The query could not be answered."""

    exit_code = Exit.INVALID


class SecretsUnknown(LabLedgerError):
    """The output of a running trial may show secrets, and no engine here knows their values."""


class ExtraMissing(LabLedgerError):
    """An optional part of labledger is not installed."""
