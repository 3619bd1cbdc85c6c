"""The `labledger` command: its list of commands, and the handling of their errors.

Commands raise errors. This module prints their messages and hints on stderr, and chooses the exit
code. To start fast, commands import the library when they run, and plain option values are
converted without pydantic, which takes a third of the time of a short command.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
import typer.core

from labledger import __version__
from labledger.cli.commands import (
    agents,
    backups,
    compare,
    control,
    experiments,
    gateway,
    hosts,
    ledger_queries,
    maintenance,
    notifications,
    permissions,
    report,
    runs,
    show_runs,
    view,
)
from labledger.cli.console import has_no_reader, prepare_streams, say, say_error, silence
from labledger.cli.error_messages import system_failure, usage_error
from labledger.cli.help_pages import CommandLine, command_line
from labledger.errors import Exit, LabLedgerError

_BUILD = "build_runtime_param"
"""The typer function that makes a converter for the values of a parameter."""
_NUMBERS = {int: re.compile(r"-?[0-9]{1,15}"), float: re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,6})?")}
_PATH_CHECKS = ("exists", "readable", "writable", "resolve_path", "allow_dash")


def spare_conversions() -> None:
    """Make typer accept plain values without its slow converters.

    Each parameter gets a converter of this module. It returns values that already have the expected
    form, and leaves all others to typer's checks and messages. If typer works differently, this has
    no effect.
    """
    build = getattr(typer.core, _BUILD, None)
    if build is not None:
        setattr(typer.core, _BUILD, lambda expected: _PlainValues(expected, build))


class _PlainValues:
    """A converter for the values of a parameter, as typer expects it."""

    def __init__(self, expected: Any, build: Callable[[Any], Any]) -> None:
        self._expected = expected
        self._build = build

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a plain value converted; let typer convert any other value."""
        is_list = param.multiple or param.nargs == -1
        if value is None or value == ():
            return () if is_list else None
        annotation = self._expected.annotation
        if is_list and get_origin(annotation) is list and isinstance(value, list | tuple):
            plain = [self._plain(item, get_args(annotation)[0]) for item in value]
            if None not in plain:
                return plain
        elif not is_list and (plain_value := self._plain(value, annotation)) is not None:
            return plain_value
        return self._build(self._expected).coerce(value, param=param, ctx=ctx)

    def _plain(self, value: Any, annotation: Any) -> Any:
        """Return a value of the expected type, or a converted number or path; else None."""
        info = self._expected.parameter_info
        if info.parser is not None:
            return None
        if annotation is Path and type(value) is str:
            # typer checks that an existing file is readable unless the option says otherwise.
            return None if any(getattr(info, name, True) for name in _PATH_CHECKS) else Path(value)
        if annotation in _NUMBERS and type(value) is str:
            number = annotation(value) if _NUMBERS[annotation].fullmatch(value) else None
            return number if number is not None and _is_within(number, info) else None
        if get_origin(annotation) is Literal:
            return value if value in get_args(annotation) else None
        return value if annotation is not Path and type(value) is annotation else None


def _is_within(number: float, info: Any) -> bool:
    return (info.min is None or number >= info.min) and (info.max is None or number <= info.max)


app = CommandLine(
    name="labledger",
    help="Runs agent experiments in containers and keeps every result in one SQLite ledger.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"labledger {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


_NAMES: dict[Any, str] = {control.set_limits: "set", maintenance.import_runs: "import"}
"""The names of commands whose functions need another name, because it is a word of Python."""
# A word such as -draft or -high is a tag to remove, not a group of options.
_TAG_SETTINGS = {"ignore_unknown_options": True, "help_option_names": ["--help"]}

for _command in (
    *(experiments.init, experiments.preflight, runs.run, runs.resume, runs.extend, runs.regrade),
    *(runs.rerun, experiments.check, show_runs.runs, show_runs.status, show_runs.show),
    *(show_runs.logs, view.view, control.pause, control.unpause, control.set_limits),
    *(control.stop, control.cancel, ledger_queries.query, ledger_queries.export, report.report),
    *(compare.compare, experiments.plan, maintenance.note, maintenance.tag, maintenance.archive),
    *(
        backups.backup,
        backups.restore,
        maintenance.delete,
        maintenance.gc,
        hosts.worker,
        maintenance.import_runs,
    ),
    *(maintenance.verify, maintenance.doctor, maintenance.clean, permissions.allow),
):
    _settings = _TAG_SETTINGS if _command is maintenance.tag else None
    app.command(_NAMES.get(_command), context_settings=_settings)(_command)
for _group in (
    *(agents.agents, hosts.hosts, notifications.notifications, gateway.gateway, maintenance.db),
):
    app.add_typer(_group)


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of typer's usage errors, which has no public name."""


@cache
def program() -> Callable[..., Any]:
    """Return the command line. It is built once, because that takes longer than most commands."""
    spare_conversions()
    line: Callable[..., Any] = command_line(app)
    return line


def main() -> None:
    """Run the command line and raise `SystemExit` with its exit code."""
    prepare_streams()
    code = _exit_code()
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
    sys.exit(code)


def _exit_code() -> int:
    """Run the command, print its error if it raises one, and return the exit code."""
    try:
        return int(program()(standalone_mode=False) or Exit.COMPLETE)
    except LabLedgerError as error:
        failure = error
    except SystemExit:
        # typer raises it, with code 1, instead of the error about a pipe without a reader.
        if not has_no_reader(sys.stdout):
            raise
        silence(sys.stdout)
        return int(Exit.COMPLETE)
    except OSError as error:
        if has_no_reader(sys.stdout):
            # The reader of the pipe, such as `head`, has ended.
            silence(sys.stdout)
            return int(Exit.COMPLETE)
        failure = system_failure(error)
    except UnicodeEncodeError as error:
        # A path may hold bytes that are not text; all that labledger writes is UTF-8.
        failure = LabLedgerError(
            f"the name {error.object!r} contains bytes that are not UTF-8",
            hint="rename the file or folder, or correct the argument",
        )
    except KeyboardInterrupt:
        say("labledger: interrupted")
        return int(Exit.INTERRUPTED)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
            return int(Exit.INVALID)
        failure = usage_error(error)
    say_error(failure)
    return int(failure.exit_code)
