"""Decide when a run cannot continue because of hosts that do not answer.

Slots of a host that does not answer wait for it, and others go on. Only when nothing has advanced
for longer than the run's patience does the run stop, resumable. That a host is lost is never
concluded. Used by the cluster executor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from labledger.cluster.coordinator_side.host_link import HostLink
from labledger.executors.placement import needs_of
from labledger.trial.attempt_spec import AttemptSpec

_MAX_NAMED_SLOTS = 10


class BlockedHosts:
    """When anything of a run last advanced, and what it waits for."""

    def __init__(self) -> None:
        self._last_activity = time.monotonic()
        self._too_large: AttemptSpec | None = None
        """The attempt to place next, if it asks for more than any host with room offers."""

    def record_placement(self, too_large: AttemptSpec | None) -> None:
        """Record an attempt that asks for more than hosts with room offer, or None for others."""
        self._too_large = too_large

    def record_activity(self) -> None:
        """Record that an attempt was submitted, or that a result arrived."""
        self._last_activity = time.monotonic()

    def stop_cause(self, links: Sequence[HostLink], patience_s: float) -> str | None:
        """Return why the run cannot continue, None while any trial may still advance."""
        now = time.monotonic()
        if now - self._last_activity <= patience_s:
            return None
        blocked = [link for link in links if link.problem is not None and link.lost_because is None]
        working = [link for link in links if link.problem is None]
        if any(link.pending for link in working):
            return None
        waiting = [link for link in blocked if link.pending]
        if not waiting:
            if working and self._too_large is not None:
                return _too_large(self._too_large, patience_s)
            return None if working else _no_host(links, patience_s)
        if any(now - link.blocked_since <= patience_s for link in waiting):
            return None
        return "; ".join(_sentence(link, patience_s) for link in waiting)


def _no_host(links: Sequence[HostLink], patience_s: float) -> str:
    problems = "; ".join(f"{link.name}: {link.problem}" for link in links)
    found = f" ({problems})" if problems else ""
    return f"no host could take a trial for {patience_s:.0f} s{found}"


def _too_large(spec: AttemptSpec, patience_s: float) -> str:
    return (
        f"no host could take slot {spec.slot.schedule_idx} for {patience_s:.0f} s: it asks for "
        f"{needs_of(spec)}"
    )


def _sentence(link: HostLink, patience_s: float) -> str:
    slots = sorted({idx for idx, _ in link.pending})
    named = ", ".join(map(str, slots[:_MAX_NAMED_SLOTS]))
    more = f" and {len(slots) - _MAX_NAMED_SLOTS} more" if len(slots) > _MAX_NAMED_SLOTS else ""
    noun = "slot" if len(slots) == 1 else "slots"
    wait = "waits" if len(slots) == 1 else "wait"
    return f"{link.name} for {patience_s:.0f} s: {link.problem}; {noun} {named}{more} {wait} for it"
