"""The commands of the command line, each made when it is first used.

To make one, typer inspects the signature of its function. Making all takes longer than most
commands, of which each process runs one. `app` and the help of a group use this module.
"""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

import typer.main


def command_line(app: typer.Typer) -> Any:
    """Return the command line of `app`, as `typer.main.get_command` does."""
    without_commands = copy(app)
    without_commands.registered_commands = []
    group: Any = typer.main.get_command(without_commands)
    group.commands = _Commands(group.commands)
    for info in app.registered_commands:
        if info.callback is not None:
            name = info.name or typer.main.get_command_name(info.callback.__name__)
            group.commands[name] = _Unmade(app, info)
    return group


def help_by_name(commands: Mapping[str, Any]) -> dict[str, str]:
    """Return the help text of each command that is not hidden, without making any."""
    made = commands.data if isinstance(commands, _Commands) else commands
    return {name: command.help or "" for name, command in made.items() if not command.hidden}


class _Unmade:
    """A command that typer has not made yet."""

    def __init__(self, app: typer.Typer, info: Any) -> None:
        self.hidden = info.hidden
        self.help = inspect.cleandoc(info.help or info.callback.__doc__ or "")
        self.make: Callable[[], Any] = partial(
            typer.main.get_command_from_info,
            info,
            pretty_exceptions_short=app.pretty_exceptions_short,
            rich_markup_mode=app.rich_markup_mode,
        )


class _Commands(UserDict[str, Any]):
    """Commands by name, of which those that are read are made."""

    def __getitem__(self, name: str) -> Any:
        command = self.data[name]
        if isinstance(command, _Unmade):
            command = self.data[name] = command.make()
        return command
