"""`labledger logs`: the outputs of a trial as they come, escaped, line by line.

Lines of different outputs are separated by a heading, as `tail -f` does. With `--json`, each line
is a JSON object.
"""

from __future__ import annotations

from codecs import IncrementalDecoder, getincrementaldecoder
from typing import TYPE_CHECKING

from labledger.cli.output.console import out_json_line, out_line_at_once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from labledger.api import LogPiece


_MAX_UNFINISHED = 1 << 20
"""A longer line is printed in parts, so that memory stays bounded; in characters."""


def print_logs(pieces: Iterable[LogPiece], *, as_json: bool) -> bool:
    """Print pieces of a trial's outputs as whole lines. Return whether there were any."""
    printer = _LinePrinter(as_json=as_json)
    for piece in pieces:
        printer.add(piece)
    printer.finish()
    return printer.has_printed


class _LinePrinter:
    """Prints each line of several outputs when it is complete, under the output's heading."""

    def __init__(self, *, as_json: bool) -> None:
        self.has_printed = False
        self._as_json = as_json
        self._decoders: dict[str, IncrementalDecoder] = {}
        self._unfinished: dict[str, str] = {}
        self._heading = ""

    def add(self, piece: LogPiece) -> None:
        new_decoder = getincrementaldecoder("utf-8")
        decoder = self._decoders.setdefault(piece.name, new_decoder("replace"))
        text = self._unfinished.pop(piece.name, "") + decoder.decode(piece.content)
        *lines, rest = text.split("\n")
        for line in lines:
            self._print(piece.name, line)
        if len(rest) > _MAX_UNFINISHED:
            self._print(piece.name, rest)
        elif rest:
            self._unfinished[piece.name] = rest

    def finish(self) -> None:
        """Print the last lines, which have no end."""
        for name, decoder in self._decoders.items():
            rest = self._unfinished.pop(name, "") + decoder.decode(b"", final=True)
            if rest:
                self._print(name, rest)

    def _print(self, name: str, line: str) -> None:
        if self._as_json:
            out_json_line({"output": name, "line": line})
        else:
            if name != self._heading:
                out_line_at_once(f"==> {name.replace('_', ' ')} <==")
                self._heading = name
            out_line_at_once(line)
        self.has_printed = True
