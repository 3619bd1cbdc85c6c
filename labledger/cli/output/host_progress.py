"""The hosts of a run on a cluster, in words: how many trials each has, and which do not answer.

Used by `run_progress`, for a run of this process (from its `tick` events) and for one that another
process runs (from the ledger, which does not know whether hosts answer).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labledger.text.phrases import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from labledger.api import JsonObject

_MAX_NAMED = 6
"""With more hosts, only those are named on which nothing can be placed."""


@dataclass(frozen=True, slots=True)
class HostProgress:
    """A host, as it was last seen."""

    name: str
    trials: int
    """How many trials of the run it has."""
    slots: int | None = None
    """How many trials it runs at once; None if not known."""
    problem: str | None = None
    """Why no trial is placed on it; None if trials may be, or if it is not known."""

    def text(self) -> str:
        """Return its trials, or its problem and how many trials wait for it."""
        if self.problem is not None:
            waiting = f" ({counted(self.trials, 'trial')} there)" if self.trials else ""
            return f"{self.name}: {self.problem}{waiting}"
        of_slots = "" if self.slots is None else f" in {counted(self.slots, 'slot')}"
        return f"{self.name}: {counted(self.trials, 'trial')}{of_slots}"


def hosts_of_event(tick: JsonObject) -> list[HostProgress]:
    """Return the hosts that a `tick` event lists, none if it lists none."""
    return [
        HostProgress(each["host"], each["trials"], each["slots"], each["problem"])
        for each in tick.get("hosts", ())
    ]


def hosts_of_slots(open_slots: Mapping[int, str]) -> list[HostProgress]:
    """Return the hosts of a cluster that have open slots; those of a machine are not listed."""
    trials = Counter(host for host in open_slots.values() if "/" in host)
    return [HostProgress(host, count) for host, count in sorted(trials.items())]


def host_texts(hosts: Sequence[HostProgress]) -> Iterator[str]:
    """Yield a phrase for each of a few hosts, or for those of many on which nothing is placed."""
    if len(hosts) <= _MAX_NAMED:
        yield from (host.text() for host in hosts)
        return
    failing = [host for host in hosts if host.problem is not None]
    yield f"{len(hosts) - len(failing):,} of {counted(len(hosts), 'host')} take trials"
    yield from (host.text() for host in failing[:_MAX_NAMED])
    if len(failing) > _MAX_NAMED:
        yield f"and {len(failing) - _MAX_NAMED:,} more do not"
