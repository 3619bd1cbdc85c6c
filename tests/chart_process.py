"""One process that draws the charts of many pages.

The program draws the charts of a page by a process of its own, which starts a JavaScript engine:
most of the time of a page. Here the same library draws the same specifications, but it is started
once. What the process itself does, how it fails for example, needs a real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from labledger.records import JsonObject

_PROGRAM = """
import json, sys, vl_convert
for line in sys.stdin:
    print(json.dumps([vl_convert.vegalite_to_svg(each) for each in json.loads(line)]), flush=True)
"""


class ChartProcess:
    """Draws charts; its process is started for the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def svg(self, specifications: Sequence[JsonObject]) -> list[str]:
        """Return the SVG of each specification, which is Vega-Lite."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(specifications) + "\n")
        self._process.stdin.flush()
        drawn: list[str] = json.loads(self._process.stdout.readline())
        return drawn

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None
