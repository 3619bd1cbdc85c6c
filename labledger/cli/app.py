"""The `labledger` command: its list of commands, and the handling of their errors.

Commands raise errors; this module prints their messages and hints on stderr, and chooses the exit
code. Each command imports the library's modules when it runs, so that `--help` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import typer

from labledger import __version__
from labledger.api import Exit, LabLedgerError
from labledger.cli.commands import (
    benchmark_checks,
    compare,
    experiments,
    hosts,
    ledger_queries,
    maintenance,
    notes_and_tags,
    plan,
    report,
    reruns,
    tidying,
)
from labledger.cli.error_messages import system_failure, usage_error
from labledger.cli.options.help_pages import CommandLine
from labledger.cli.options.lazy_commands import command_line
from labledger.cli.options.plain_values import spare_conversions
from labledger.cli.output.console import has_no_reader, prepare_streams, say, say_error, silence

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


experiments.register(app)
reruns.register(app)
benchmark_checks.register(app)
ledger_queries.register(app)
report.register(app)
compare.register(app)
plan.register(app)
notes_and_tags.register(app)
tidying.register(app)
hosts.register(app)
maintenance.register(app)


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of typer's errors for a command line that it refuses; it has no public name."""


@cache
def program() -> Callable[..., Any]:
    """Return the command line, built once: that takes longer than most commands."""
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
