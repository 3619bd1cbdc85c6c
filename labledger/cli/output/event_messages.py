"""The lines that a person is told of a run's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labledger.text.figures import clock_time
from labledger.text.phrases import counted

if TYPE_CHECKING:
    from labledger.api import JsonObject

UNITS = {"cost_usd": "USD", "tokens": "tokens"}
"""The unit of each kind of budget."""

_RESUMED = {
    "engine": "the Docker engine answers again",
    "disk": "there is room again",
    "refusals": "the Docker engine starts trials again",
}


def notable_line(event: JsonObject) -> str | None:
    """What a person is told of an event, where it is worth a line of its own."""
    match event["event"]:
        case "run_started":
            return started_line(event)
        case "warning" | "dispatch_paused":
            return f"warning: {event['message']}"
        case "dispatch_resumed":
            return f"{_RESUMED[event['cause']]}, after {clock_time(event['seconds'])}; going on"
        case "waiting_for_lease" | "run_wanted":
            return owner_line(event)
        case "stopping":
            return stopping_note(event["level"])
        case "budget_spent":
            return str(event["message"])
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
        f"its lease, at most {clock_time(event['seconds'])}; Ctrl-C leaves the run to it"
    )


def started_line(event: JsonObject) -> str:
    slots = counted(event["total"], "slot")
    line = f"run {event['run_id']}: {slots}, {event['max_concurrency']} at once"
    if event["committed"] or event["staged"] or event["begun"]:
        line += (
            f"; going on after {event['committed']} committed, with {event['staged']} finished "
            f"and {counted(event['begun'], 'begun trial')} of an earlier coordinator"
        )
    if limits := event["budget"]:
        amounts = " or ".join(f"{limit:,.10g} {UNITS[kind]}" for kind, limit in limits.items())
        line += (
            f"; once {amounts} are spent, no trial starts, and those that run then "
            f"(at most {event['max_concurrency']}) still add to it"
        )
    return line


def failed_line(event: JsonObject) -> str:
    again = ", running it again" if event["will_retry"] else ""
    return (
        f"slot {event['schedule_idx']} ({event['variant_id']}, {event['task_id']}): "
        f"{event['status']}: {event['reason']}{again}"
    )


def stopping_note(level: int) -> str:
    if level == 1:
        return "stopping: running trials finish and are committed; Ctrl-C again ends them now"
    return "stopping now: containers are being ended; their slots run again on resume"
