"""How the command line speaks: results on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

    from labledger.errors import LabLedgerError
    from labledger.runner.checks import Check


def out(text: str = "") -> None:
    """A line of the result itself. A terminal that has been closed needs none."""
    try:
        sys.stdout.write(text + "\n")
    except OSError as error:
        if not _is_closed_terminal(sys.stdout, error):
            raise
        silence(sys.stdout)


def out_json(value: Any) -> None:
    out(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str = "") -> None:
    """A line about the work, for a person. Where nobody can read it, the work goes on."""
    tell(sys.stderr, text)


def tell(stream: TextIO, text: str) -> None:
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


def _is_closed_terminal(stream: TextIO, error: OSError) -> bool:
    is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return error.errno == errno.EIO and is_device


def say_error(error: LabLedgerError) -> None:
    say(f"labledger: {error.message}")
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
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        side = "right" if name in right else "left"
        drawn.add_column(Text(name), justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        drawn.add_row(*(Text(cell(value)) for value in row))
    printer = console()
    if not printer.is_terminal:
        # A file or a pipe has no width of its own: every row stays one line.
        printer.width = 10_000
        printer.width = printer.measure(drawn).maximum
    with printer.capture() as drawing:
        printer.print(drawn)
    out(drawing.get().removesuffix("\n"))


def print_checks(checks: Iterable[Check]) -> None:
    """What was looked at, and the mend of what is not well."""
    for check in checks:
        mark = "ok  " if check.ok else "warn" if check.warning else "FAIL"
        out(f"{mark}  {check.name}: {check.detail}")
        if not check.ok and check.hint:
            out(f"      → {check.hint}")


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return str(value)


def percent(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them: ``8s``, ``3:07``, ``2:10:00``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
