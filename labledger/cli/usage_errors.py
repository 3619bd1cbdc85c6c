"""Say in our words what is wrong with a command line that typer refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labledger.api import InvalidInput, Problem
from labledger.text.phrases import near_names

if TYPE_CHECKING:
    from labledger.api import LabLedgerError


def usage_error(error: Any) -> LabLedgerError:
    """Return the error to show for a usage error of typer, whichever parser it comes with."""
    context = error.ctx
    command = context.command_path if context else "labledger"
    problem = Problem(*_what_is_wrong(error, command), hint=_meant(error))
    return InvalidInput(
        "the command line", [problem], hint=f"`{command} --help` lists its arguments and options"
    )


def _what_is_wrong(error: Any, command: str) -> tuple[str, str]:
    """The option, argument or command, and what is wrong with it."""
    kind, message = type(error).__name__, str(error.message)
    param = getattr(error, "param", None)
    if kind == "MissingParameter" and param is not None:
        return _name(param), "is missing"
    if param is not None:
        return _name(param), _expected(error, message)
    if kind == "NoSuchOption":
        return error.option_name, f"{command} has no such option"
    if kind == "BadOptionUsage" and "requires an argument" in message:
        return error.option_name, "found nothing after it; expected a value"
    if unknown := re.match(r"No such command '(.*?)'", message):
        return unknown[1], f"{command} has no such command"
    if extra := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return extra[1], f"{command} takes no such argument; expected fewer"
    return command, message


def _name(param: Any) -> str:
    """An option as it is typed, or an argument as the usage shows it."""
    options = [word for word in param.opts if word.startswith("-")]
    return max(options, key=len) if options else str(param.name).upper()


def _expected(error: Any, message: str) -> str:
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return message
    detail = details()[0]
    wanted = next(_wanted(detail), None)
    if wanted is None:
        return str(detail["msg"]).removeprefix("Value error, ")
    return f"found {detail['input']!r}; expected {wanted}"


def _wanted(detail: Any) -> Iterator[str]:
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


def _meant(error: Any) -> str | None:
    """The option or command that was probably meant."""
    if error.ctx is None:
        return None
    command, message = error.ctx.command, str(error.message)
    if typed := getattr(error, "option_name", None):
        known = [word for param in command.params for word in param.opts if word[:2] == "--"]
    elif unknown := re.match(r"No such command '(.*?)'", message):
        typed, known = unknown[1], list(getattr(command, "commands", ()))
    else:
        return None
    near = near_names(typed, known) if typed not in known else []
    return f"did you mean {near[0]}?" if near else None
