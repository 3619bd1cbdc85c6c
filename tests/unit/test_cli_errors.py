"""What the command line says of failures that nothing below it has put in words."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from commands import run_forked
from source_labs import begin

from labledger.cli.error_messages import system_failure


def labledger(folder: Path, *words: object) -> tuple[int, str]:
    """A command's exit code and what it said on stderr."""
    done = run_forked(*words, folder=folder)
    return done.returncode, done.stderr


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """The command, the path, the reason in words, the file in the way, and what to do."""
    begin(tmp_path / "there", "theirs", 1)
    begin(tmp_path / ".lab", "ours", 1)
    runs = tmp_path / ".lab" / "runs"
    runs.write_text("")
    code, printed = labledger(tmp_path, "import", tmp_path / "there")
    assert code == 3
    assert "Errno" not in printed
    assert f"`labledger import` failed at {runs}: Not a directory" in printed
    assert f"{runs} is a file where a folder is needed; move it away, and try again" in printed


@pytest.mark.parametrize("words", [("query", "--file"), ("run", ".", "--env-file")])
def test_a_named_file_that_is_not_there(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Its name and the reason, without the numbers of the operating system."""
    begin(tmp_path / ".lab", "ours", 1)
    labledger(tmp_path, "init", "experiment")
    code, printed = labledger(tmp_path / "experiment", *words, "absent")
    assert code == 2
    assert printed.endswith("  absent: No such file or directory\n")


@pytest.mark.parametrize("number", [*errno.errorcode, None])
def test_every_error_has_words(number: int | None) -> None:
    """With a path or without, known or not, there is a reason and a hint."""
    for error in (OSError(number, "Reason", "/path"), OSError(number, "Reason"), OSError("Reason")):
        failure = system_failure(error)
        assert "Errno" not in failure.message
        assert failure.message.endswith("Reason")
        assert failure.hint
