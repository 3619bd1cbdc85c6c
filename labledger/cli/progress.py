"""Watching a run: a live display on a terminal, plain lines elsewhere, JSON lines on request."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from types import TracebackType
from typing import TYPE_CHECKING

from labledger.cli.console import console, duration, percent, say, tell
from labledger.ledger.model import Spent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.live import Live

    from labledger.records import JsonObject

_LINE_EVERY_S = 2.0
_MENDED = {
    "engine": "the Docker engine answers again",
    "disk": "there is room again",
    "refusals": "the Docker engine starts trials again",
}


class RunView:
    """What a run's events add up to."""

    def __init__(self) -> None:
        self.run_id = ""
        self.total = 0
        self.committed = 0
        self.in_flight = 0
        """Trials that run or are prepared."""
        self.waiting = 0
        self.width = 0
        self.finished = 0
        self.variants: list[str] = []
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)
        self.verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        self.note = ""
        self.spent = {"cost_usd": Spent(), "tokens": Spent()}
        """What the trials spent that finished since this began."""
        self._began = time.monotonic()
        self._committed_before = 0

    def take(self, event: JsonObject) -> None:
        match event["event"]:
            case "run_started":
                self.run_id, self.total, self.note = event["run_id"], event["total"], ""
                self.committed = self._committed_before = event["committed"]
                self.variants, self.width = event["variants"], event["max_concurrency"]
            case "trial_finished":
                self.finished += 1
                self.in_flight = max(0, self.in_flight - 1)
                for kind in self.spent:
                    self.spent[kind] = self.spent[kind].plus(event.get(kind))
            case "slot_committed":
                self.committed = event["schedule_idx"] + 1
                self.waiting = event["waiting"]
                self.statuses[event["variant_id"]][event["status"]] += 1
                if event["verdict"]:
                    self.verdicts[event["variant_id"]][event["verdict"]] += 1
            case "tick":
                self.in_flight, self.waiting = event["running"], event["waiting"]
            case "dispatch_paused":
                self.note = event["message"]
            case "dispatch_resumed":
                self.note = ""
            case "waiting_for_lease" | "run_wanted":
                self.note = owner_line(event)
            case "stopping":
                self.note = stopping_note(event["level"])

    @property
    def running(self) -> int:
        return min(self.in_flight, self.width)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at the pace so far; None before anything finished."""
        done = self.committed - self._committed_before + self.waiting
        if not done:
            return None
        return self.elapsed_s / done * (self.total - self.committed - self.waiting)

    def all_statuses(self) -> Counter[str]:
        return sum(self.statuses.values(), Counter())

    def line(self) -> str:
        """One line on where the run stands."""
        statuses = self.all_statuses()
        eta = self.remaining_s
        parts = [
            f"{self.committed}/{self.total} committed",
            f"{self.running} running",
            f"{self.waiting} waiting to commit",
            *(f"{variant} {self.rate(variant)}" for variant in self.variants[:4]),
            f"{statuses['grade_error']} grade errors",
            f"{statuses['infra_error']} infra errors",
            f"{duration(self.elapsed_s)} elapsed",
        ]
        if eta is not None:
            parts.append(f"about {duration(eta)} left")
        return " · ".join([*parts, *spent_texts(self.spent)])

    def rate(self, variant: str) -> str:
        verdicts = self.verdicts[variant]
        scored = sum(verdicts.values())
        return percent(verdicts["pass"] / scored if scored else None)


def stopping_note(level: int) -> str:
    if level == 1:
        return "stopping: running trials finish and are committed; Ctrl-C again ends them now"
    return "stopping now: containers are being ended; their slots run again on resume"


def spent_texts(spent: Mapping[str, Spent]) -> list[str]:
    """What was spent, for a person, where anything is known of it."""
    units = {"cost_usd": "USD", "tokens": "tokens"}
    return [
        f"{found.total:,.10g} {units[kind]} spent"
        + (f" (unknown of {found.unknown} trials)" if found.unknown else "")
        for kind, found in spent.items()
        if found.known
    ]


class JsonWatcher:
    """One event a line on stdout."""

    def __enter__(self) -> JsonWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: JsonObject) -> None:
        if event["event"] != "tick":
            tell(sys.stdout, json.dumps(event, ensure_ascii=False))


class QuietWatcher(JsonWatcher):
    """Says nothing but warnings."""

    def __call__(self, event: JsonObject) -> None:
        if event["event"] in {"warning", "dispatch_paused", "run_wanted"}:
            say(notable_line(event) or "")


class PlainWatcher(JsonWatcher):
    """Lines for a log file: where the run stands every few seconds, and what went wrong."""

    def __init__(self) -> None:
        self._view = RunView()
        self._last = 0.0

    def __call__(self, event: JsonObject) -> None:
        self._view.take(event)
        if (line := notable_line(event)) is not None:
            say(line)
        elif event["event"] in {"slot_committed", "tick"} and self._is_due(event):
            say(self._view.line())

    def _is_due(self, event: JsonObject) -> bool:
        if event["event"] == "slot_committed" and self._view.committed == self._view.total:
            self._last = time.monotonic()
            return True
        return self._is_time()

    def _is_time(self) -> bool:
        now = time.monotonic()
        pause = _LINE_EVERY_S if self._view.elapsed_s < 60 else 15 * _LINE_EVERY_S
        if now - self._last < pause:
            return False
        self._last = now
        return True


def notable_line(event: JsonObject) -> str | None:
    """What a person is told of an event, where it is worth a line of its own."""
    match event["event"]:
        case "run_started":
            return started_line(event)
        case "warning" | "dispatch_paused":
            return f"warning: {event['message']}"
        case "dispatch_resumed":
            return f"{_MENDED[event['cause']]}, after {duration(event['seconds'])}; going on"
        case "waiting_for_lease" | "run_wanted":
            return owner_line(event)
        case "stopping":
            return stopping_note(event["level"])
        case "trial_finished" if event["status"] != "completed":
            return failed_line(event)
        case _:
            return None


def owner_line(event: JsonObject) -> str:
    """Who has the run, or wants it, and until when."""
    who = f"process {event['pid']} on {event['host']}"
    if event["event"] == "run_wanted":
        return (
            f"warning: {who} wants this run since {event['since']} and takes it over at "
            f"{event['expires_at']}; until then it goes on here"
        )
    return (
        f"run {event['run_id']} belongs to {who} since {event['since']}; waiting for the end of "
        f"its lease, at most {duration(event['seconds'])}; Ctrl-C leaves the run to it"
    )


def started_line(event: JsonObject) -> str:
    line = f"run {event['run_id']}: {event['total']} slots, {event['max_concurrency']} at once"
    if event["committed"] or event["staged"] or event["begun"]:
        line += (
            f"; going on after {event['committed']} committed, with {event['staged']} finished "
            f"and {event['begun']} begun trials of an earlier coordinator"
        )
    return line


def failed_line(event: JsonObject) -> str:
    again = ", running it again" if event["will_retry"] else ""
    return (
        f"slot {event['schedule_idx']} ({event['variant_id']}, {event['task_id']}): "
        f"{event['status']}: {event['reason']}{again}"
    )


class LiveWatcher:
    """A display that stays at the foot of the terminal."""

    def __init__(self) -> None:
        self._view = RunView()
        self._live: Live | None = None

    def __enter__(self) -> LiveWatcher:
        from rich.live import Live

        self._live = Live(
            console=console(stderr=True),
            get_renderable=self._draw,
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
        self._view.take(event)
        line = notable_line(event)
        if line is not None and self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(line))

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        view = self._view
        if not view.total:
            return Text(view.note or "checking …")
        eta = view.remaining_s
        head = Table.grid(padding=(0, 1))
        head.add_row(
            ProgressBar(total=view.total, completed=view.committed, width=30),
            Text(f"{view.committed}/{view.total} committed"),
            Text(f"{view.running} running", style="cyan"),
            Text(f"{view.waiting} waiting to commit"),
            Text(f"{duration(view.elapsed_s)} elapsed", style="dim"),
            Text(f"{duration(eta)} left" if eta is not None else "", style="dim"),
        )
        parts: list[RenderableType] = [Text(view.run_id, style="bold"), head, _variants(view)]
        if texts := spent_texts(view.spent):
            parts.append(Text(" · ".join(texts), style="dim"))
        if view.note:
            parts.append(Text(view.note, style="yellow"))
        return Group(*parts)


def _variants(view: RunView) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, 2))
    names = ("pass rate", "pass", "fail", "missing", "error", "agent", "grade", "infra")
    drawn.add_row(Text("variant", style="dim"), *(Text(name, style="dim") for name in names))
    for variant in view.variants[:12]:
        verdicts, statuses = view.verdicts[variant], view.statuses[variant]
        agent = sum(statuses[s] for s in ("agent_error", "agent_timeout", "setup_error"))
        counts = [verdicts[v] for v in ("pass", "fail", "missing", "error")]
        counts += [agent, statuses["grade_error"], statuses["infra_error"]]
        drawn.add_row(variant, Text(view.rate(variant), style="bold"), *(str(c) for c in counts))
    if len(view.variants) > 12:
        drawn.add_row(f"and {len(view.variants) - 12} more")
    return drawn


def watcher(*, as_json: bool, quiet: bool) -> JsonWatcher | LiveWatcher:
    """The way to watch that fits the options and the terminal."""
    if as_json:
        return JsonWatcher()
    if quiet:
        return QuietWatcher()
    return LiveWatcher() if sys.stderr.isatty() else PlainWatcher()
