"""The `labledger` command: what commands there are, and one boundary for their errors."""

from __future__ import annotations

import sys

import typer

from labledger import __version__
from labledger.api import Exit, LabLedgerError
from labledger.cli.commands import (
    compare,
    experiments,
    import_runs,
    ledger_queries,
    maintenance,
    regrade,
    report,
)
from labledger.cli.output.console import has_no_reader, prepare_streams, say, say_error, silence
from labledger.cli.system_errors import in_words
from labledger.cli.usage_errors import usage_error

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
regrade.register(app)
ledger_queries.register(app)
report.register(app)
compare.register(app)
import_runs.register(app)
maintenance.register(app)


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a command line that it refuses; it has no public name."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    prepare_streams()
    code = _exit_code()
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
    sys.exit(code)


def _exit_code() -> int:
    """Run the command; every error labledger knows becomes a message and an exit code."""
    try:
        return int(app(standalone_mode=False) or Exit.COMPLETE)
    except LabLedgerError as error:
        failure = error
    except SystemExit:
        # typer raises it, with code 1, in the place of an error about a pipe without a reader.
        if not has_no_reader(sys.stdout):
            raise
        silence(sys.stdout)
        return int(Exit.COMPLETE)
    except OSError as error:
        if has_no_reader(sys.stdout):
            # The reader of a pipe has seen enough, as `head` does.
            silence(sys.stdout)
            return int(Exit.COMPLETE)
        failure = in_words(error)
    except UnicodeEncodeError as error:
        # A name of bytes that are no text: everything of ours is written in UTF-8.
        failure = LabLedgerError(
            f"the name {error.object!r} holds bytes that are not UTF-8",
            hint="rename what it names, or correct the word that was typed",
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
