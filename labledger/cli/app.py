"""The `labledger` command: what commands there are, and one boundary for their errors."""

from __future__ import annotations

import sys

import typer

from labledger import __version__
from labledger.cli import experiments, history, maintenance
from labledger.cli.console import say, say_error
from labledger.errors import Exit, LabLedgerError

app = typer.Typer(
    name="labledger",
    help="Runs agent experiments in containers and keeps every result in one SQLite ledger.",
    no_args_is_help=True,
    add_completion=False,
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
history.register(app)
maintenance.register(app)


def main() -> None:
    """Run the command line; every error labledger knows becomes a message and an exit code."""
    try:
        app()
    except LabLedgerError as error:
        say_error(error)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        say("labledger: interrupted")
        sys.exit(int(Exit.INTERRUPTED))
    except BrokenPipeError:
        # The reader of a pipe has seen enough, as `head` does.
        sys.stderr.close()
        sys.exit(0)
