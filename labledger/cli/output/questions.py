"""Questions of commands that remove or repeat something, asked on the terminal."""

from __future__ import annotations

import sys

from labledger.api import InvalidInput, Problem
from labledger.cli.output.console import say


def confirm(question: str, *, yes: bool) -> bool:
    """Return whether a person agrees; with `yes`, nobody is asked.

    The question goes to stderr. Raises `InvalidInput` if there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        message = "the command asks before it goes on, and there is no terminal to ask on"
        raise InvalidInput("the command", [Problem("--yes", message, hint="add --yes to agree")])
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
