"""How the command line speaks: results on stdout, everything else on stderr.

Everything that the command line writes goes through this module, which escapes it for a terminal;
JSON, CSV and the bytes of an export stay exact for the program that reads them.
"""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import sys
from codecs import getincrementaldecoder, register_error
from collections.abc import Iterable, Sequence
from io import RawIOBase, TextIOWrapper
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from labledger.cli.output.next_steps import typed_lab_dir, with_lab_dir
from labledger.text.figures import DASH, significant
from labledger.text.terminal_text import escape_json, escape_line, escape_lines

if TYPE_CHECKING:
    from rich.console import Console

    from labledger.api import CheckResult, LabLedgerError


def out(line: str = "") -> None:
    """Write a line of the result itself, escaped; commands in backticks are as to be typed."""
    _write(_for_person(line) + "\n")


def out_sentence(line: str) -> None:
    """Write a line as `out` does; on a terminal, break it between words, never within a name."""
    if not sys.stdout.isatty():
        out(line)
        return
    import shutil
    import textwrap

    wrapped = textwrap.fill(
        _for_person(line),
        max(shutil.get_terminal_size().columns, 40),
        subsequent_indent="  ",  # Only its first line begins at the left margin.
        break_long_words=False,
        break_on_hyphens=False,
    )
    _write(wrapped + "\n")


def out_lines(text: str) -> None:
    """Write several lines of the result itself, each escaped."""
    _write(escape_lines(text) + "\n")


def out_json(value: Any) -> None:
    out_json_text(json.dumps(value, indent=2, ensure_ascii=False))


def out_json_text(document: str) -> None:
    """Write a line or a document of JSON: the same values, none of them raw on a terminal."""
    _use_utf8(sys.stdout)
    _write(escape_json(document) + "\n")


def exact_stdout() -> BinaryIO:
    """Where bytes that programs read are written: stdout, escaped where it is a terminal."""
    sys.stdout.flush()
    _use_utf8(sys.stdout)
    return cast("BinaryIO", _TerminalBytes()) if sys.stdout.isatty() else sys.stdout.buffer


class _TerminalBytes(RawIOBase):
    """Lines of UTF-8 on their way to a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        _write(escape_lines(self._decoder.decode(bytes(content))))
        return len(content)


def _write(text: str) -> None:
    """Write on stdout. A terminal that has been closed needs nothing."""
    try:
        sys.stdout.write(text)
    except OSError as error:
        if not _is_closed_terminal(sys.stdout, error):
            raise
        silence(sys.stdout)


def say(line: str = "") -> None:
    """Write a line about the work, as `out` does. Where nobody can read it, the work goes on."""
    _tell(sys.stderr, _for_person(line))


def _for_person(line: str) -> str:
    return escape_line(with_lab_dir(line, typed_lab_dir()) if "`" in line else line)


def tell_json(value: Any) -> None:
    """Write a line of JSON on stdout at once. Where nobody can read it, the work goes on."""
    _use_utf8(sys.stdout)
    _tell(sys.stdout, escape_json(json.dumps(value, ensure_ascii=False)))


def _tell(stream: TextIO, text: str) -> None:
    """Write a line at once. A stream that cannot be written any more is silenced for good."""
    lasting = Lasting(stream)
    lasting.write(text + "\n")
    lasting.flush()


class Lasting:
    """A stream that is silenced for good when it cannot be written any more."""

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
    """Send what is still to be written, and what waits in a buffer, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


_REPLACEMENTS = {"–": "-", "·": "-", "→": "->", "…": "...", "×": "x", "≤": "<=", "≥": ">="}
"""What stands for characters of ours in an encoding that does not have them."""


def prepare_streams() -> None:
    """Make stdout and stderr writable, whatever their encoding, also where they are closed.

    What is written to a closed one goes nowhere, instead of into a file that is opened later and
    gets its number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
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
"""The name of the error handler of our streams."""


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    ours = (_REPLACEMENTS.get(c) or c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(ours), error.end


def _use_utf8(stream: TextIO) -> None:
    """Write UTF-8 from now on, which JSON and our other formats are in."""
    if isinstance(stream, TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
        stream.reconfigure(encoding="utf-8")


def has_no_reader(stream: TextIO) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_closed_terminal(stream: TextIO, error: OSError) -> bool:
    is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return error.errno == errno.EIO and is_device


def say_error(error: LabLedgerError) -> None:
    """Write what went wrong and what to do. Only the first line begins at the left margin."""
    first, *others = f"labledger: {error.message}".split("\n")
    say(first)
    for line in others:
        say(line if line.startswith("  ") else f"  {line}")
    if error.hint:
        say(f"  → {error.hint}")


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    file = cast("TextIO", Lasting(sys.stderr)) if stderr else None
    return Console(file=file, highlight=False, soft_wrap=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()
) -> None:
    """Print a table on stdout. Columns named in `right` are aligned to the right."""
    from labledger.cli.output.table_layout import Content, draw

    content = Content(
        [escape_line(name) for name in columns],
        [[cell(value) for value in row] for row in rows],
        frozenset(escape_line(name) for name in right),
    )
    _write(draw(content, console()))


def cell(value: Any) -> str:
    """A value as it stands in a table, on one line."""
    if value is None:
        return DASH
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return escape_line(str(value))


def print_checks(checks: Iterable[CheckResult]) -> None:
    """The result of one check, and a suggested fix if it failed."""
    for check in checks:
        mark = "ok  " if check.ok else "warn" if check.warning else "FAIL"
        out(f"{mark}  {check.name}: {check.detail}")
        if not check.ok and check.hint:
            out(f"      → {check.hint}")
