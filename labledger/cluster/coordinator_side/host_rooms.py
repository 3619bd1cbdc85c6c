"""How many attempts the hosts of a run take, and which of them have room for another.

A coordinator asks for this several times a slot. So that its work does not grow with the number of
hosts, the totals are kept, and hosts with room lie in order of how busy they are. `update` follows
each change of a link. Used by the cluster executor, under its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from labledger.cluster.attempt_inputs import input_digests
from labledger.cluster.coordinator_side.host_link import HostLink
from labledger.executors.placement import choose_host, needs_of
from labledger.trial.attempt_spec import AttemptSpec

_Load = tuple[bool, float]
"""Whether all slots of a host are taken, and their share: what `choose_host` looks at first."""


@dataclass(frozen=True, slots=True)
class _Room:
    """What a host adds to the totals."""

    slots: int
    capacity: int
    blocked: int
    load: _Load | None
    """None if it has no room."""


@dataclass(slots=True)
class HostRooms:
    """The hosts of a run by the room that they have."""

    slots: int = 0
    """How many trials run at once on all hosts that trials may be placed on."""
    capacity: int = 0
    """How many attempts these hosts take at once."""
    blocked: int = 0
    """How many attempts the other hosts have."""
    _rooms: dict[str, _Room] = field(default_factory=dict)
    _with_room: dict[_Load, dict[str, HostLink]] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether some host can be given another attempt."""
        return bool(self._with_room)

    def update(self, link: HostLink) -> None:
        """Take note of a link after anything of it has changed."""
        old, new = self._rooms.get(link.name), _room_of(link)
        if old == new:
            return
        self._rooms[link.name] = new
        self.slots += new.slots - (old.slots if old else 0)
        self.capacity += new.capacity - (old.capacity if old else 0)
        self.blocked += new.blocked - (old.blocked if old else 0)
        if old is not None and old.load is not None:
            equals = self._with_room[old.load]
            del equals[link.name]
            if not equals:
                del self._with_room[old.load]
        if new.load is not None:
            self._with_room.setdefault(new.load, {})[link.name] = link

    def choose(self, spec: AttemptSpec) -> HostLink | None:
        """Return the host for an attempt as `choose_host` does, None if none with room can run it.

        A host that lacks the image gets one attempt with it until it has it: others would hold
        places while they wait. Of hosts that have all that is needed and are equally busy, any is
        taken, so that few have to be looked at.
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

    @staticmethod
    def _best(
        spec: AttemptSpec, links: Mapping[str, HostLink], inputs: Collection[str]
    ) -> HostLink | None:
        states = [link.state for link in links.values() if link.state is not None]
        taken = {name: link.taken for name, link in links.items()}
        chosen = choose_host(spec, states, taken, inputs)
        return None if chosen is None else links[chosen]


def _room_of(link: HostLink) -> _Room:
    taken = link.taken
    if link.problem is not None or link.state is None:
        return _Room(0, 0, taken, None)
    slots, capacity = link.slots, link.capacity
    if taken >= capacity:
        return _Room(slots, capacity, 0, None)
    used = max(taken, link.state.busy)
    return _Room(slots, capacity, 0, (used >= slots, used / slots if slots else 1.0))
