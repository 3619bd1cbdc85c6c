"""The `labledger` command: what commands there are, and one boundary for their errors."""

from __future__ import annotations

import sys

import typer

from labledger import __version__
from labledger.cli import (
    comparing,
    exchange,
    experiments,
    history,
    maintenance,
    regrading,
    reporting,
)
from labledger.cli.console import say, say_error, silence
from labledger.cli.system_errors import in_words
from labledger.errors import Exit, LabLedgerError

app = typer.Typer(
    name="labledger",
    help="Runs agent experiments in containers and keeps every result in one SQLite ledger.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"labledger {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


experiments.register(app)
regrading.register(app)
history.register(app)
reporting.register(app)
comparing.register(app)
exchange.register(app)
maintenance.register(app)


def main() -> None:
    """Run the command line and leave with its exit code."""
    code = _exit_code()
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
    sys.exit(code)


def _exit_code() -> int:
    """Run the command; every error labledger knows becomes a message and an exit code."""
    try:
        app()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):
            # The reader of a pipe has seen enough, as `head` does; typer would say 1.
            return int(Exit.COMPLETE)
        return leaving.code if isinstance(leaving.code, int) else int(Exit.COMPLETE)
    except LabLedgerError as error:
        say_error(error)
        return int(error.exit_code)
    except OSError as error:
        failure = in_words(error)
        say_error(failure)
        return int(failure.exit_code)
    except KeyboardInterrupt:
        say("labledger: interrupted")
        return int(Exit.INTERRUPTED)
    return int(Exit.COMPLETE)
