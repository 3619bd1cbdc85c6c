"""Sentences of notifications about a run. The ledger stores them with each notification."""

from __future__ import annotations

from collections.abc import Sequence

from labledger.text.figures import percent
from labledger.text.words import counted_of


def passed_phrase(variant_id: str, passed: int, counted: int) -> str:
    """Return how many of the counted trials of a variant passed. `counted` is not 0."""
    share = counted_of(passed, counted, "trial")
    return f"{variant_id} passed {share} ({percent(passed / counted)})"


def finished_sentence(total_slots: int, rates: Sequence[str], coverage: str | None) -> str:
    """Return that every trial of a run is saved.

    `rates` has the `passed_phrase` of each variant. `coverage` is the share of a benchmark's tasks
    that the run has; None if it has all of them.
    """
    return "; ".join(
        (
            f"finished, {counted_of(total_slots, total_slots, 'trial')} saved",
            *rates,
            *([f"on {coverage} tasks of the benchmark"] if coverage is not None else ()),
        )
    )


def stopped_sentence(message: str | None) -> str:
    """Return that a run stopped early, and why if it is known."""
    return "stopped before all trials were saved" + (f": {message}" if message else "")


def host_lost_sentence(host: str, because: str) -> str:
    """Return that a person declared a host lost."""
    return f"host {host} was declared lost: {because}"
