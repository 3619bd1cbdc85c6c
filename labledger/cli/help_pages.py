"""Makes commands when they are first used, and writes their help pages.

typer inspects the signature of every command, which takes longer than running most commands. So
only the command that runs is made. typer's own grouped help needs rich, which is slow to import.
These pages have groups and a word for each value without rich.
"""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from labledger.errors import Exit, LabLedgerError


def command_line(app: typer.Typer) -> Any:
    """Return the command line of `app`, as `typer.main.get_command` does."""
    without_commands = copy(app)
    without_commands.registered_commands = []
    group: Any = typer.main.get_command(without_commands)
    commands = _Commands()
    for info in app.registered_commands:
        if info.callback is not None:
            name = info.name or typer.main.get_command_name(info.callback.__name__)
            commands[name] = _Unmade(app, info)
    commands.update(group.commands)
    group.commands = commands
    return group


def help_by_name(commands: Mapping[str, Any]) -> dict[str, str]:
    """Return the help text of each command that is not hidden, without making any command."""
    items = commands.data if isinstance(commands, _Commands) else commands
    return {name: command.help or "" for name, command in items.items() if not command.hidden}


WITH_OPTIONS = "with_options"
"""The attribute of a command with a function that returns it with its shared options."""


class _Unmade:
    """A command that typer has not made yet."""

    def __init__(self, app: typer.Typer, info: Any) -> None:
        self.hidden = info.hidden
        self.help = inspect.cleandoc(info.help or info.callback.__doc__ or "")
        self._app, self._info = app, info

    def make(self) -> Any:
        """Make the command, with its shared options."""
        info = copy(self._info)
        info.callback = getattr(info.callback, WITH_OPTIONS, lambda: info.callback)()
        return typer.main.get_command_from_info(
            info,
            pretty_exceptions_short=self._app.pretty_exceptions_short,
            rich_markup_mode=self._app.rich_markup_mode,
        )


class _Commands(UserDict[str, Any]):
    """Commands by name. A command is made when it is first read."""

    def __getitem__(self, name: str) -> Any:
        command = self.data[name]
        if isinstance(command, _Unmade):
            command = self.data[name] = command.make()
        return command


Rows = list[tuple[str, str]]

COMMAND_GROUPS = {
    "Run experiments": "init preflight run resume extend rerun regrade check",
    "Steer a run": "pause unpause set stop cancel notifications",
    "Read results": "runs view status show logs query compare report plan export",
    "Keep the ledger": "note tag verify import archive backup restore delete gc clean db doctor "
    "allow",
    "Many hosts": "worker hosts",
    "Agents and models": "agents gateway",
}
"""The groups of `labledger --help`, and the commands of each."""

OPTION_GROUPS = {
    "What is run": "run_id limit tasks variants status reason where despite_verdict shard agents "
    "image skip_refused strict build replay grader again frozen take_over because dry_run yes",
    "How it is run": "max_concurrency env env_file on insecure egress_image window keep lease_ttl "
    "lab_dir",
    "When it stops": "patience min_free max_error_rate continue_unanswered budget_usd "
    "budget_tokens",
    "What is shown": "json quiet notify fail_under help",
}
"""The groups of the options of commands that run trials, by the names of their parameters.

Other commands have few enough for one list."""

_MAX_TERM = 26
"""The widest option whose help starts on the same line, in columns."""


class Interrupted(LabLedgerError):
    """The user pressed Ctrl-C during a command."""

    exit_code = Exit.INTERRUPTED


def _name_values(params: Iterable[Any]) -> None:
    """Give each value a descriptive word, where typer would print its Python type."""
    for param in params:
        has_value = not getattr(param, "is_flag", False)
        has_choices = getattr(getattr(param, "type_descriptor", None), "is_choice", False)
        if param.metavar is None and has_value and not has_choices:
            words = max(param.opts, key=len).lstrip("-").split("-")
            param.metavar = words[-1].upper()


class CommandLine(typer.Typer):
    """A group of commands whose help pages come from this module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Group, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register the decorated function as a command."""
        return super().command(name, cls=Command, **settings)


class Command(TyperCommand):
    """A command whose help groups its options if it runs trials."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        _name_values(self.params)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options."""
        _write_params(self.get_params(ctx), ctx, formatter)


class Group(TyperGroup):
    """A group of commands whose help lists them under the headings of `COMMAND_GROUPS`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and the commands."""
        _write_params(self.get_params(ctx), ctx, formatter)
        texts = help_by_name(self.commands)
        rows = {name: (name, _first_sentence(text)) for name, text in texts.items()}
        _write_groups(COMMAND_GROUPS, rows, "Commands", formatter)

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the command line."""
        with _reporting_interrupts():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _reporting_interrupts():
            return super().invoke(ctx)


@contextmanager
def _reporting_interrupts() -> Iterator[None]:
    """Raise `Interrupted` after Ctrl-C, because typer would print nothing."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None


def _write_params(params: Sequence[Any], ctx: Any, formatter: Any) -> None:
    rows: dict[str, tuple[str, str]] = {}
    arguments: Rows = []
    for param in params:
        record = param.get_help_record(ctx)
        if record is None:
            continue
        if param.param_type_name == "argument":
            arguments.append((param.metavar, record[1]))
        else:
            rows[param.name] = record
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl(arguments, _MAX_TERM)
    runs_trials = "patience" in rows
    _write_groups(OPTION_GROUPS if runs_trials else {}, rows, "Options", formatter)


def _write_groups(
    groups: Mapping[str, str], rows: Mapping[str, tuple[str, str]], others: str, formatter: Any
) -> None:
    """Write the rows of each group in the group's order, and then all other rows."""
    remaining = dict(rows)
    for heading, names in [*groups.items(), (others, None)]:
        order = list(remaining) if names is None else names.split()
        if listed := [remaining.pop(name) for name in order if name in remaining]:
            with formatter.section(heading):
                formatter.write_dl(listed, _MAX_TERM)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a command's help."""
    sentence, dot, _ = " ".join(text.split()).partition(". ")
    return sentence + dot.strip()
