"""Messages and hints for errors, in the words of the command line.

The library names its parameters in problems (`Parameter`) and, as arguments in backticks such as
`frozen=True`, in sentences. Here both become options. Usage errors and unconverted errors of the
operating system become errors with a message and a hint, too.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from labledger.errors import Exit, InvalidInput, LabLedgerError, Parameter, Problem
from labledger.text.words import near_names

_IRREGULAR = {
    "agents": "--agent",
    "benchmark": "--from",
    "env_files": "--env-file",
    "from_runs": "--from",
    "lease_ttl_s": "--lease-ttl",
    "max_bytes": "--max-size",
    "min_free_bytes": "--min-free",
    "patience_s": "--patience",
    "phases": "--phase",
    "reasons": "--reason",
    "run_ids": "--run",
    "statuses": "--status",
    "tasks": "--task",
    "variants": "--variant",
}
"""The options whose names differ from their parameters'."""
_ARGUMENT = re.compile(r"`([a-z][a-z_]*)=([^`]*)`")
_NAMED_VALUE = re.compile(r"\{'(\w+)': (.*)\}")


def option_name(parameter: str) -> str:
    """Return the option that sets a parameter of the library."""
    return _IRREGULAR.get(parameter) or f"--{parameter.replace('_', '-')}"


def with_options(text: str) -> str:
    """Return text with its arguments in backticks replaced by options."""
    return _ARGUMENT.sub(_typed, text) if "=" in text else text


def _typed(argument: re.Match[str]) -> str:
    parameter, value = argument.groups()
    if (parameter, value) == ("lower_is_better", "False"):
        return "--higher-is-better"
    option = option_name(parameter)
    if value in ("", "True"):
        return option
    named = _NAMED_VALUE.fullmatch(value)
    return f"{option} {f'{named[1]}={named[2]}' if named else value.strip(chr(39))}"


def as_typed(error: LabLedgerError) -> LabLedgerError:
    """Return an error whose problems name options instead of parameters."""
    if not isinstance(error, InvalidInput):
        return error
    problems = [
        replace(problem, where=option_name(problem.where))
        if isinstance(problem.where, Parameter)
        else problem
        for problem in error.problems
    ]
    return InvalidInput(error.subject, problems, hint=error.hint)


_HINTS = {
    errno.ENOENT: "something that labledger needs was moved or removed; put it back",
    errno.EEXIST: "move it out of the way",
    errno.EISDIR: "move the folder out of the way",
    errno.EACCES: "check the owner and permissions of the path and of its folders",
    errno.EPERM: "check the owner and permissions of the path and of its folders",
    errno.EROFS: "choose a folder on a file system that can be written",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space on that file system, where your quota is used up",
    errno.EIO: "check the disk and its file system",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`), or run fewer trials at once (-n)",
    errno.ENFILE: "close other programs: the machine has as many files open as it can",
    errno.ENOMEM: "free some memory, or run fewer trials at once (-n)",
}
_RETRY = "and try again; saved trials are kept, and `labledger resume` continues a run"


class SystemFailure(LabLedgerError):
    """The operating system refused an operation that the command needs."""

    exit_code = Exit.INCOMPLETE


def system_failure(error: OSError) -> SystemFailure:
    """Return an error that names the command, the path, the reason, and what to do."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    reason = error.strerror or str(error) or type(error).__name__
    hint = _HINTS.get(error.errno or 0, "remove the cause")
    location = ""
    if error.filename is not None:
        path = Path(str(error.filename))
        location = f" at {path}"
        if error.errno == errno.ENOTDIR:
            hint = f"{_file_in_the_way(path)} is a file where a folder is needed; move it away"
    return SystemFailure(
        f"`labledger {command}` failed{location}: {reason}", hint=f"{hint}, {_RETRY}"
    )


def _file_in_the_way(path: Path) -> Path:
    """Return the nearest of a path and its parents that exists and is not a folder."""
    return next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)


def usage_error(error: Any) -> LabLedgerError:
    """Return the error to show for a usage error of typer, in any version of typer."""
    context = error.ctx
    command = context.command_path if context else "labledger"
    problem = Problem(*_usage_problem(error, command), hint=_suggestion(error))
    return InvalidInput(
        "the command line", [problem], hint=f"`{command} --help` lists its arguments and options"
    )


def _usage_problem(error: Any, command: str) -> tuple[str, str]:
    """Return the option, argument or command, and what is wrong with it."""
    kind, message = type(error).__name__, str(error.message)
    param = getattr(error, "param", None)
    if kind == "MissingParameter" and param is not None:
        return _param_name(param), "is missing"
    if param is not None:
        return _param_name(param), _value_problem(error, message)
    if kind == "NoSuchOption":
        return error.option_name, f"{command} has no such option"
    if kind == "BadOptionUsage" and "requires an argument" in message:
        return error.option_name, "found nothing after it; expected a value"
    if unknown := re.match(r"No such command '(.*?)'", message):
        return unknown[1], f"{command} has no such command"
    if extra := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return extra[1], f"{command} takes no such argument; expected fewer"
    return command, message


def _param_name(param: Any) -> str:
    """Return an option as it is typed, or an argument as the usage shows it."""
    options = [word for word in param.opts if word.startswith("-")]
    return max(options, key=len) if options else str(param.name).upper()


def _value_problem(error: Any, message: str) -> str:
    """Return what was found and what was expected; else typer's message."""
    # If pydantic refused the value, its error has the details.
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return message
    detail = details()[0]
    expected = next(_expected_values(detail), None)
    if expected is None:
        return str(detail["msg"]).removeprefix("Value error, ")
    return f"found {detail['input']!r}; expected {expected}"


def _expected_values(detail: Any) -> Iterator[str]:
    """Yield descriptions of the valid values, the most general first."""
    bounds, kind = detail.get("ctx", {}), str(detail["type"])
    if kind.startswith("int_"):
        yield "a whole number"
    if kind.startswith(("float_", "finite_")):
        yield "a number"
    if "ge" in bounds:
        yield f"{bounds['ge']:g} or more"
    if "le" in bounds:
        yield f"{bounds['le']:g} or less"
    if choices := re.search(r"is not one of (.*?)\.?$", str(detail["msg"])):
        yield f"one of {choices[1].replace(chr(39), '')}"


def _suggestion(error: Any) -> str | None:
    """Return a question with the option or command that was probably meant."""
    if error.ctx is None:
        return None
    command, message = error.ctx.command, str(error.message)
    if typed := getattr(error, "option_name", None):
        choices = [word for param in command.params for word in param.opts if word[:2] == "--"]
    elif unknown := re.match(r"No such command '(.*?)'", message):
        typed, choices = unknown[1], list(getattr(command, "commands", ()))
    else:
        return None
    near = near_names(typed, choices) if typed not in choices else []
    return f"did you mean {near[0]}?" if near else None
