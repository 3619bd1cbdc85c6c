"""The `labledger` command as a process of its own, and `python -m labledger`."""

from labledger.cli.app import main as run_command
from labledger.cli.process_exit import leave


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        run_command()
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        leave(ending.code)


if __name__ == "__main__":
    main()
