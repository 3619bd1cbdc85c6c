"""Displays of a run in progress: live on a terminal, else plain lines, or JSON on request.

Each display is a listener for run events, and a context manager around the run.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from labledger.cli.console import console, out_json_line, say
from labledger.cli.event_lines import notable_line
from labledger.cli.run_progress import VERDICT_COLUMNS, RunProgress, host_texts
from labledger.text.escaping import escape_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live
    from rich.text import Text

    from labledger.results import JsonObject, RunState

_PROGRESS_INTERVAL_S = 2.0
_LATER_PROGRESS_INTERVAL_S = 30.0
"""The interval after the first minute."""
_MAX_SHOWN_VARIANTS = 12


class JsonWatcher:
    """Writes each event as a line of JSON on stdout."""

    def __enter__(self) -> JsonWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: JsonObject) -> None:
        if event["event"] != "tick":
            out_json_line(event)

    def show(self, state: RunState) -> None:
        """Write the state of a run that another process runs."""
        out_json_line(state.as_json())


class QuietWatcher(JsonWatcher):
    """Prints warnings only."""

    def __call__(self, event: JsonObject) -> None:
        if event["event"] in {"warning", "dispatch_paused", "run_wanted"}:
            say(notable_line(event) or "")

    def show(self, state: RunState) -> None:
        """Print nothing, because a state is not a warning."""


class PlainWatcher(JsonWatcher):
    """Prints lines for a log file: progress every few seconds, and each notable event."""

    def __init__(self) -> None:
        self._progress = RunProgress()
        self._printed_at = 0.0
        self._images_said_at: dict[str, float] = {}

    def __call__(self, event: JsonObject) -> None:
        self._progress.add(event)
        if (line := notable_line(event)) is not None:
            say(line)
        elif event["event"] in {"slot_committed", "tick"} and self._progress_is_due(event):
            self._printed_at = time.monotonic()
            say(self._progress.line())
        elif event["event"] == "image_build_progress":
            self._say_image(event)

    def _say_image(self, event: JsonObject) -> None:
        """Print from time to time how long an image has taken so far."""
        image = event["image"]
        now = time.monotonic()
        if now - self._images_said_at.setdefault(image, now) >= _LATER_PROGRESS_INTERVAL_S:
            self._images_said_at[image] = now
            say(self._progress.builds[image].text(image))

    def show(self, state: RunState) -> None:
        """Print a line if the interval since the last line is over."""
        self._progress.show(state)
        if self._interval_is_over():
            self._printed_at = time.monotonic()
            say(self._progress.line())

    def _progress_is_due(self, event: JsonObject) -> bool:
        """Return whether the run's last slot was committed, or the interval is over."""
        progress = self._progress
        if event["event"] == "slot_committed" and progress.committed == progress.total:
            return True
        return self._interval_is_over()

    def _interval_is_over(self) -> bool:
        is_early = self._progress.elapsed_s < 60
        interval_s = _PROGRESS_INTERVAL_S if is_early else _LATER_PROGRESS_INTERVAL_S
        return time.monotonic() - self._printed_at >= interval_s


class LiveWatcher:
    """Shows a display at the bottom of the terminal."""

    def __init__(self) -> None:
        self._progress = RunProgress()
        self._live: Live | None = None

    def __enter__(self) -> LiveWatcher:
        from rich.live import Live

        self._live = Live(
            console=console(stderr=True),
            get_renderable=self.draw,
            refresh_per_second=5,
            transient=True,
        )
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: JsonObject) -> None:
        self._progress.add(event)
        line = notable_line(event)
        if line is not None and self._live is not None:
            from rich.text import Text

            # Lines break between words, so that names stay whole.
            self._live.console.print(Text(escape_line(line)), soft_wrap=False)

    def show(self, state: RunState) -> None:
        """Show the totals of a run that another process runs."""
        self._progress.show(state)

    def draw(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._progress
        if not progress.total:
            images = [_line(image.text(name)) for name, image in list(progress.builds.items())]
            return Group(*images) if images else _line(progress.note or "checking …")
        bar = Table.grid(expand=True)  # A bar by itself does not end its line.
        bar.add_row(ProgressBar(total=progress.total, completed=progress.committed))
        parts: list[RenderableType] = [
            Text(escape_line(progress.run_id), style="bold", overflow="fold"),
            bar,
            _Phrases(progress.progress_texts()),
            _variant_table(progress),
        ]
        if progress.hosts:
            parts.append(_Phrases(list(host_texts(progress.hosts)), "dim"))
        if texts := progress.spent_texts():
            parts.append(_Phrases(texts, "dim"))
        if cleaning := progress.cleaning_text():
            parts.append(_line(cleaning, "dim"))
        if progress.note:
            parts.append(Text(escape_line(progress.note), style="yellow"))
        return Group(*parts)


class _Phrases:
    """Phrases on as few lines as possible. No phrase is broken across lines."""

    def __init__(self, phrases: Sequence[str], style: str = "") -> None:
        self._phrases = phrases
        self._style = style

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        line = ""
        for phrase in self._phrases:
            longer = f"{line} · {phrase}" if line else phrase
            if line and len(longer) > options.max_width:
                yield _line(line, self._style)
                longer = phrase
            line = longer
        yield _line(line, self._style)


def _line(text: str, style: str = "") -> Text:
    """Return text on one line, truncated to the width of the terminal."""
    from rich.text import Text

    return Text(escape_line(text), style=style, no_wrap=True, overflow="ellipsis")


def _variant_table(progress: RunProgress) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    headings = ("pass rate", *VERDICT_COLUMNS, "left out")
    table.add_row(_line("variant", "dim"), *(_line(heading, "dim") for heading in headings))
    for heading, column in zip(headings, table.columns[1:], strict=True):
        # On a narrow terminal only the names of variants are truncated.
        column.min_width = len(heading)
        column.justify = "right"
    for variant in progress.variants[:_MAX_SHOWN_VARIANTS]:
        counts = map(str, progress.counts(variant))
        table.add_row(_line(variant), _line(progress.rate(variant), "bold"), *counts)
    if len(progress.variants) > _MAX_SHOWN_VARIANTS:
        table.add_row(f"and {len(progress.variants) - _MAX_SHOWN_VARIANTS} more")
    return table


def watcher(*, as_json: bool, quiet: bool) -> JsonWatcher | LiveWatcher:
    """Return the display that fits the options and the terminal."""
    if as_json:
        return JsonWatcher()
    if quiet:
        return QuietWatcher()
    return LiveWatcher() if sys.stderr.isatty() else PlainWatcher()
