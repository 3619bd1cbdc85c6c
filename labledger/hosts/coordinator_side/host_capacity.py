"""How many attempts the hosts of a run take, and when a run stops because no host answers.

Totals and the order of hosts by load are kept up to date: call `HostCapacity.update` after each
change of a link. If nothing advances for longer than the patience, the run stops, resumable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from labledger import clock
from labledger.execution.host_state import HostState, Limits, capacity_of, needs_of
from labledger.hosts.coordinator_side.host_link import HostLink
from labledger.hosts.host_messages import input_digests
from labledger.trial.container_spec import ContainerSpec

_Load = tuple[bool, float]
"""Whether all slots of a host are taken, and the taken share. `choose_host` compares it first."""


@dataclass(frozen=True, slots=True)
class _Room:
    """The part of one host in the totals."""

    slots: int = 0
    capacity: int = 0
    blocked: int = 0
    load: _Load | None = None
    """The load of the host; None if it has no room."""


@dataclass(slots=True)
class HostCapacity:
    """The room on the hosts of a run."""

    slots: int = 0
    """How many trials run at once on all usable hosts."""
    capacity: int = 0
    """How many attempts the usable hosts take at once."""
    blocked: int = 0
    """How many attempts the unusable hosts have."""
    limits: Limits = field(default_factory=Limits)
    """How many attempts a host may have. `update` every link after a change."""
    _rooms: dict[str, _Room] = field(default_factory=dict)
    _with_room: dict[_Load, dict[str, HostLink]] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether any host can take another attempt."""
        return bool(self._with_room)

    def update(self, link: HostLink) -> None:
        """Update the totals after a change of a link."""
        old, new = self._rooms.get(link.name, _Room()), self._room_of(link)
        if old == new:
            return
        self._rooms[link.name] = new
        self.slots += new.slots - old.slots
        self.capacity += new.capacity - old.capacity
        self.blocked += new.blocked - old.blocked
        if old.load is not None:
            equals = self._with_room[old.load]
            del equals[link.name]
            if not equals:
                del self._with_room[old.load]
        if new.load is not None:
            self._with_room.setdefault(new.load, {})[link.name] = link

    def choose(self, spec: ContainerSpec) -> HostLink | None:
        """Return the host for an attempt like `choose_host`; None if no host with room can run it.

        A host that lacks the image gets only one attempt with it until the image is there, because
        further ones would hold places while they wait. Among equally busy hosts with all inputs,
        the first one is taken, so that few hosts are compared.
        """
        image, inputs, needs = spec.image_id, input_digests(spec), needs_of(spec)
        for are_full in (False, True):
            loads = sorted(load for load in self._with_room if load[0] is are_full)
            for has_image in (True, False):
                for load in loads:
                    links: dict[str, HostLink] = {}
                    for name, link in self._with_room[load].items():
                        state = link.state
                        if state is None or link.has_image(image) is not has_image:
                            continue
                        if not needs.are_met_by(state):
                            continue
                        if has_image and inputs <= state.inputs:
                            return link
                        if has_image or not link.awaits_image(image):
                            links[name] = link
                    if links:
                        return self._best(spec, links, inputs)
        return None

    def is_awaited(self, spec: ContainerSpec, links: Iterable[HostLink]) -> bool:
        """Return whether a host could take an attempt if it were not closed."""
        needs = needs_of(spec)
        return any(
            self.limits.is_closed(link.name)
            and link.lost_because is None
            and (link.state is None or needs.are_met_by(link.state))
            for link in links
        )

    def _room_of(self, link: HostLink) -> _Room:
        taken, at_most = link.taken, self.limits.at_most_per_host
        if link.problem is not None or link.state is None:
            return _Room(blocked=taken)
        slots, capacity = link.state.slots, capacity_of(link.state.slots)
        if at_most is not None:
            slots, capacity = min(slots, at_most), min(capacity, at_most)
        # A closed host adds to the capacity, because its started attempts are still collected.
        if taken >= capacity or self.limits.is_closed(link.name):
            return _Room(slots, capacity)
        used = max(taken, link.state.busy)
        return _Room(slots, capacity, 0, (used >= slots, used / slots if slots else 1.0))

    @staticmethod
    def _best(
        spec: ContainerSpec, links: Mapping[str, HostLink], inputs: Collection[str]
    ) -> HostLink | None:
        states = [link.state for link in links.values() if link.state is not None]
        taken = {name: link.taken for name, link in links.items()}
        chosen = choose_host(spec, states, taken, inputs)
        return None if chosen is None else links[chosen]


_MAX_NAMED_SLOTS = 10


@dataclass(slots=True)
class BlockedHosts:
    """When a run last advanced, and which attempt it cannot place."""

    too_large: ContainerSpec | None = None
    """The attempt to place next, if it needs more than any host with room offers."""
    _last_activity: float = field(default_factory=clock.monotonic)

    def record_activity(self) -> None:
        """Record that an attempt was submitted, that a result arrived, or that limits changed."""
        self._last_activity = clock.monotonic()

    def stop_cause(
        self,
        links: Sequence[HostLink],
        patience_s: float,
        is_closed: Callable[[str], bool] = lambda _: False,
    ) -> str | None:
        """Return why the run cannot continue; None while any trial may still advance.

        An attempt that is too large counts only if the coordinator tried to place it since the last
        call, because it may have been paused or cancelled. If a user has closed all hosts
        (`is_closed`), missing answers do not stop the run.
        """
        too_large, self.too_large = self.too_large, None
        now = clock.monotonic()
        if now - self._last_activity <= patience_s:
            return None
        blocked = [link for link in links if link.problem is not None and link.lost_because is None]
        working = [link for link in links if link.problem is None]
        if any(link.pending for link in working):
            return None
        waiting = [link for link in blocked if link.pending]
        if not waiting:
            if working:
                return None if too_large is None else _too_large(too_large, patience_s)
            in_use = [link for link in links if link.lost_because is None]
            is_paused = bool(in_use) and all(is_closed(link.name) for link in in_use)
            return None if is_paused else _no_host(links, patience_s)
        if any(now - link.blocked_since <= patience_s for link in waiting):
            return None
        return "; ".join(_sentence(link, patience_s) for link in waiting)


def _no_host(links: Sequence[HostLink], patience_s: float) -> str:
    problems = "; ".join(f"{link.name}: {link.problem}" for link in links)
    details = f" ({problems})" if problems else ""
    return f"no host could take a trial for {patience_s:.0f} s{details}"


def _too_large(spec: ContainerSpec, patience_s: float) -> str:
    return (
        f"no host could take trial {spec.slot.schedule_idx} for {patience_s:.0f} s: it asks for "
        f"{needs_of(spec)}"
    )


def _sentence(link: HostLink, patience_s: float) -> str:
    slots = sorted({idx for idx, _ in link.pending})
    named = ", ".join(map(str, slots[:_MAX_NAMED_SLOTS]))
    more = f" and {len(slots) - _MAX_NAMED_SLOTS} more" if len(slots) > _MAX_NAMED_SLOTS else ""
    noun = "trial" if len(slots) == 1 else "trials"
    wait = "waits" if len(slots) == 1 else "wait"
    return f"{link.name} for {patience_s:.0f} s: {link.problem}; {noun} {named}{more} {wait} for it"


def choose_host(
    spec: ContainerSpec,
    hosts: Iterable[HostState],
    taken: Mapping[str, int],
    inputs: Collection[str],
) -> str | None:
    """Return the name of the host for an attempt; None if none of `hosts` can run it.

    `taken` has the number of this run's attempts by host. `inputs` are the digests of the
    attempt's inputs. Each of `hosts` must have room for another attempt.
    """
    needs = needs_of(spec)
    candidates = (host for host in hosts if host.problem is None and needs.are_met_by(host))
    image = spec.image_id

    def preference(host: HostState) -> tuple[bool, bool, float, int, str]:
        # Trials of other runs take slots too, and are not among `taken`.
        used = max(taken.get(host.name, 0), host.busy)
        has_room = used < host.slots
        lacks_inputs = sum(digest not in host.inputs for digest in inputs) if inputs else 0
        share = used / host.slots if host.slots else 1.0
        return (not has_room, image not in host.images, share, lacks_inputs, host.name)

    best = min(candidates, key=preference, default=None)
    return None if best is None else best.name
