"""All output of the command line: results on stdout, everything else on stderr.

Text is escaped for a terminal, but JSON, CSV and exports stay exact for programs. Commands in
backticks get this command's `--lab-dir`, so that users can type them as they are. All other modules
of `cli` must print and ask through these functions.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import shlex
import stat
import sys
from codecs import getincrementaldecoder, register_error
from collections.abc import Collection, Iterable, Sequence
from io import RawIOBase, TextIOWrapper
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from labledger.cli.error_messages import as_typed, with_options
from labledger.errors import InvalidInput, Problem
from labledger.text.escaping import escape_json, escape_line, escape_lines
from labledger.text.figures import DASH, significant
from labledger.text.json_text import json_pieces
from labledger.text.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from labledger.errors import LabLedgerError
    from labledger.results import CheckResult


_COMMAND = re.compile(r"`(labledger (?!init\b)[^`]*)`")
_LAB_DIR_OPTION = "--lab-dir"
_PIECES_AT_ONCE = 1000
_INDENTED = json.JSONEncoder(indent=2, ensure_ascii=False)


def out(line: str = "") -> None:
    """Write a line of the result, escaped."""
    _write(_for_person(line) + "\n")


def out_sentence(line: str) -> None:
    """Write a line of the result; on a terminal, break it between words, never within a name."""
    if not sys.stdout.isatty():
        out(line)
        return
    import shutil
    import textwrap

    wrapped = textwrap.fill(
        _for_person(line),
        max(shutil.get_terminal_size().columns, 40),
        subsequent_indent="  ",  # Only the first line begins at the left margin.
        break_long_words=False,
        break_on_hyphens=False,
    )
    _write(wrapped + "\n")


def out_lines(text: str) -> None:
    """Write several lines of the result, each escaped."""
    _write(escape_lines(text) + "\n")


def out_line_at_once(text: str) -> None:
    """Write a line of untrusted text as a result, escaped, and flush it."""
    _write_line(sys.stdout, escape_line(text))


def out_json(value: Any) -> None:
    """Write a value as indented JSON."""
    out_json_text(_INDENTED.encode(value))


def out_json_parts(document: dict[str, Any]) -> None:
    """Write an object like `out_json`, and stream fields that are iterators as lists.

    The memory for such a list does not grow with its length.
    """
    _use_utf8(sys.stdout)
    pieces = json_pieces(document, ascii_only=False)
    while text := "".join(islice(pieces, _PIECES_AT_ONCE)):
        _write(escape_json(text))
    _write("\n")


def out_json_text(document: str) -> None:
    """Write a JSON document, with JSON escapes for characters that a terminal interprets."""
    _use_utf8(sys.stdout)
    _write(escape_json(document) + "\n")


def exact_stdout() -> BinaryIO:
    """Return stdout as a binary stream: exact, but escaped if it is a terminal."""
    sys.stdout.flush()
    _use_utf8(sys.stdout)
    return cast("BinaryIO", _TerminalBytes()) if sys.stdout.isatty() else sys.stdout.buffer


class _TerminalBytes(RawIOBase):
    """A binary stream of UTF-8 lines that writes them to a terminal, escaped."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        _write(escape_lines(self._decoder.decode(bytes(content))))
        return len(content)


def _write(text: str) -> None:
    """Write on stdout. A terminal that has been closed is ignored."""
    try:
        sys.stdout.write(text)
    except OSError as error:
        if not _is_closed_terminal(sys.stdout, error):
            raise
        silence(sys.stdout)


def say(line: str = "") -> None:
    """Write a line for people on stderr, escaped. An unwritable stderr is ignored."""
    _write_line(sys.stderr, _for_person(line))


def _for_person(line: str) -> str:
    """Return a line for the command line, escaped for a terminal.

    It names options instead of arguments, and its commands have the lab folder.
    """
    if "`" in line:
        line = add_lab_dir_to_commands(with_options(line), typed_lab_dir())
    return escape_line(line)


def out_json_line(value: Any) -> None:
    """Write a line of JSON on stdout and flush it. An unwritable stdout is ignored."""
    _use_utf8(sys.stdout)
    _write_line(sys.stdout, escape_json(json.dumps(value, ensure_ascii=False)))


def _write_line(stream: TextIO, text: str) -> None:
    """Write a line and flush it."""
    forgiving = ForgivingStream(stream)
    forgiving.write(text + "\n")
    forgiving.flush()


class ForgivingStream:
    """A stream that discards everything from the first error on, instead of raising."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            silence(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            silence(self._stream)


def silence(stream: TextIO) -> None:
    """Discard the stream's buffer and everything that is written to the stream later."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, stream.fileno())
    os.close(null_device)


_REPLACEMENTS = {"–": "-", "·": "-", "→": "->", "…": "...", "×": "x", "≤": "<=", "≥": ">="}
"""Replacements for characters in labledger's messages that some encodings lack."""


def prepare_streams() -> None:
    """Make stdout and stderr writable in any encoding, even if the process started without them.

    A missing stream is replaced by /dev/null. Otherwise the next opened file would get its number,
    and messages would be written into that file.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # Each file gets the lowest free number, so this fills in the missing streams.
    os.close(descriptor)
    register_error(_UNENCODABLE, _replace_unencodable)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        if number:
            stream.reconfigure(errors=_UNENCODABLE)


_UNENCODABLE = "labledger"
"""The name of the codec error handler of stdout and stderr."""


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    replacements = (
        _REPLACEMENTS.get(c) or c.encode("unicode_escape").decode("ascii") for c in text
    )
    return "".join(replacements), error.end


def _use_utf8(stream: TextIO) -> None:
    """Switch a stream to UTF-8, the encoding of JSON and of all exported formats."""
    if isinstance(stream, TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
        stream.reconfigure(encoding="utf-8")


def has_no_reader(stream: TextIO) -> bool:
    """Return whether a stream is a pipe whose reader has closed it."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_closed_terminal(stream: TextIO, error: OSError) -> bool:
    is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return error.errno == errno.EIO and is_device


def say_error(error: LabLedgerError) -> None:
    """Write an error and its hint. Only the first line begins at the left margin."""
    error = as_typed(error)
    first, *others = f"labledger: {error.message}".split("\n")
    say(first)
    for line in others:
        say(line if line.startswith("  ") else f"  {line}")
    if error.hint:
        say(f"  → {error.hint}")


def console(*, stderr: bool = False) -> Console:
    """Return a console of rich on stdout or stderr."""
    from rich.console import Console

    file = cast("TextIO", ForgivingStream(sys.stderr)) if stderr else None
    return Console(file=file, highlight=False, soft_wrap=True)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    without: Collection[str] = (),
) -> None:
    """Print a table on stdout, except the columns `without`.

    Columns named in `right` are aligned to the right.
    """
    from labledger.cli.table_layout import Content, draw, plain_text

    is_printed = [name not in without for name in columns]
    content = Content(
        [escape_line(name) for name in compress(columns, is_printed)],
        [[cell(value) for value in compress(row, is_printed)] for row in rows],
        frozenset(escape_line(name) for name in right),
    )
    text = None if sys.stdout.isatty() else plain_text(content)
    _write(draw(content, console()) if text is None else text)


def cell(value: Any) -> str:
    """Return a value as text for a cell of a table, on one line."""
    if value is None:
        return DASH
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, bytes):
        return f"<{counted(len(value), 'byte')}>"
    return escape_line(str(value))


def print_checks(checks: Iterable[CheckResult]) -> None:
    """Print the result of each check, and the suggested fix if it failed."""
    for check in checks:
        mark = "ok  " if check.ok else "warn" if check.warning else "FAIL"
        first, *others = check.detail.split("\n")
        out(f"{mark}  {check.name}: {first}")
        for line in others:
            out(f"    {line}")
        if not check.ok and check.hint:
            out(f"      → {check.hint}")


# -- commands to type next


def add_lab_dir(command: str, lab_dir: Path | None) -> str:
    """Return a command with the `--lab-dir` that this command was given."""
    if lab_dir is None:
        return command
    return f"{command} {_LAB_DIR_OPTION} {shlex.quote(str(lab_dir))}"


def add_lab_dir_to_commands(text: str, lab_dir: Path | None) -> str:
    """Return text with `--lab-dir` added to its commands in backticks."""
    if lab_dir is None:
        return text
    return _COMMAND.sub(
        lambda match: (
            f"`{match[1] if _needs_no_lab_dir(match[1]) else add_lab_dir(match[1], lab_dir)}`"
        ),
        text,
    )


def _needs_no_lab_dir(command: str) -> bool:
    """Return whether a command uses no lab folder, or names one already."""
    what = command.removeprefix("labledger allow ")
    if what != command:
        # A run is found in the lab; an experiment, a benchmark and a lab folder are paths.
        return what.startswith("-") or "/" in what or ":" in what or os.path.lexists(what)
    return _LAB_DIR_OPTION in command or command.endswith(" --help")


def typed_lab_dir(words: Sequence[str] | None = None) -> Path | None:
    """Return the lab folder that the command line of this process names."""
    words = sys.argv[1:] if words is None else words
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == _LAB_DIR_OPTION and (equals or number + 1 < len(words)):
            return Path(value if equals else words[number + 1])
    return None


def confirm(question: str, *, yes: bool) -> bool:
    """Ask a question on stderr, and return whether the user agrees. With `yes`, do not ask.

    Raises `InvalidInput` if there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        message = "the command asks before it continues, and there is no terminal to ask on"
        raise InvalidInput("the command", [Problem("--yes", message, hint="add --yes to agree")])
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
