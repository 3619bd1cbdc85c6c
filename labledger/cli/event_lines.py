"""The line to print for an event of a run.

The plain display prints it, and the live display prints it above its bars. Most events have no
line: `RunProgress` adds them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labledger.cli.error_messages import with_options
from labledger.text.figures import clock_time, exact
from labledger.text.words import counted

if TYPE_CHECKING:
    from labledger.results import JsonObject

UNITS = {"cost_usd": "USD", "tokens": "tokens"}
"""The unit of each kind of budget."""

_PAUSE_ENDS = {
    "engine": "the Docker engine answers again",
    "disk": "there is enough disk space again",
    "refusals": "the Docker engine starts trials again",
}


def notable_line(event: JsonObject) -> str | None:
    """Return a line for an event that a person should see, or None."""
    match event["event"]:
        case "image_build_started":
            limit = clock_time(event["timeout_s"])
            return f"obtaining image {event['image']}, within {limit}; its log is {event['log']}"
        case "image_build_ended":
            return _image_line(event)
        case "run_started":
            return started_line(event)
        case "warning" | "dispatch_paused":
            return f"warning: {with_options(event['message'])}"
        case "dispatch_resumed":
            pause = clock_time(event["seconds"])
            return f"{_PAUSE_ENDS[event['cause']]}, after {pause}; starting trials again"
        case "waiting_for_lease" | "run_wanted":
            return owner_line(event)
        case "stopping":
            return stopping_note(event["level"])
        case "budget_spent":
            return str(event["message"])
        case "control_applied":
            return control_line(event)
        case "trial_finished" if event["status"] != "completed":
            return failed_line(event)
        case _:
            return None


def _image_line(event: JsonObject) -> str:
    """Return how obtaining an image ended."""
    took = clock_time(event["seconds"])
    if event["error"] is not None:
        return f"image {event['image']} failed after {took}: {event['error']}"
    return f"image {event['image']} was {'pulled' if event['was_pulled'] else 'built'} in {took}"


def owner_line(event: JsonObject) -> str:
    """Return which process owns the run or requests it, and when it changes hands."""
    who = f"process {event['pid']} on {event['host']}"
    if event["event"] == "run_wanted":
        return (
            f"warning: {who} requested this run at {event['since']} and takes it over at "
            f"{event['expires_at']}; until then this process continues it"
        )
    return (
        f"run {event['run_id']} belongs to {who} since {event['since']}; waiting for the end of "
        f"its lease, at most {clock_time(event['seconds'])}; Ctrl-C stops waiting"
    )


def started_line(event: JsonObject) -> str:
    """Return the size of a run that starts, its progress so far, and its budget."""
    trials = counted(event["total"], "trial")
    line = f"run {event['run_id']}: {trials}, {event['max_concurrency']} at once"
    if event["committed"] or event["staged"] or event["begun"]:
        line += (
            f"; continues after {event['committed']} saved, with {event['staged']} finished "
            f"and {counted(event['begun'], 'trial')} started by an earlier coordinator"
        )
    if limits := event["budget"]:
        amounts = " or ".join(f"{exact(limit)} {UNITS[kind]}" for kind, limit in limits.items())
        line += (
            f"; once {amounts} are spent, no further trial starts, but the trials that run then "
            f"(at most {event['max_concurrency']}) finish and add to the amount"
        )
    return line


def failed_line(event: JsonObject) -> str:
    """Return how and where an attempt failed, and whether the trial gets another attempt."""
    again = ", running it again" if event["will_retry"] else ""
    if "unjudged" in event:
        again = ", not graded: the earlier grading stays current"
    on_host = f" on {event['host']}" if "host" in event else ""
    starved = ", short of processors" if "under_pressure" in event else ""
    return (
        f"trial {event['schedule_idx']} ({event['variant_id']}, {event['task_id']}){on_host}: "
        f"{event['status']}: {event['reason']}{starved}{again}"
    )


def control_line(event: JsonObject) -> str:
    """Return who requested a change of the run, why, and what the coordinator did."""
    because = f" ({event['because']})" if event["because"] else ""
    return f"{event['requested_by']} asked{because}: {event['text']}"


def stopping_note(level: int) -> str:
    """Return what happens after a stop request of a level."""
    if level == 1:
        return "stopping: running trials finish and are saved; Ctrl-C again ends them now"
    return "stopping now: containers are being killed; their trials run again on resume"
