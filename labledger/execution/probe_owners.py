"""Find the owners of probes: containers and networks that a preflight makes before a run exists.

A trial's container belongs to its run, but a probe belongs to a process. Its labels name the
process and its lab. A probe that may belong to a living process, here or on another machine, is
never removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from labledger import clock
from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed
from labledger.engine.networks import Networks
from labledger.execution.process_identity import machine_id, process_is_dead, this_process
from labledger.ledger.database.run_info import Owner
from labledger.records import JsonObject
from labledger.records.json_codec import members
from labledger.trial.contract import Labels

NAME = "labledger-probe-"
"""The prefix of each probe's name."""
_MAX_AGE_S = 86_400.0
"""A probe without an owner, from an earlier version, counts as left over at this age, in seconds.
Probes live for minutes."""
_OLD_S = 3_600.0


class ProbeState(StrEnum):
    """The known state of the process that made a probe."""

    LEFT = "left"
    """The process has certainly ended."""
    USED = "used"
    """The process may be running on this machine."""
    UNSEEN = "unseen"
    """The process runs, or ran, where this process cannot see it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A container or network that a process made for a check."""

    name: str
    object_id: str
    is_network: bool
    state: ProbeState
    owner: str
    """A description of the process, for use in a sentence."""
    age_s: float
    """How long ago the engine made it, in seconds; 0 if unknown."""

    @property
    def is_suspect(self) -> bool:
        """Whether it may be left over, because it is old and its process cannot be seen."""
        return self.state is ProbeState.UNSEEN and self.age_s > _OLD_S

    @property
    def kind(self) -> str:
        return "network" if self.is_network else "container"

    def remove(self, engine: Engine) -> None:
        """Remove it. Do nothing if it is gone."""
        if self.is_network:
            Networks(engine).remove(self.object_id)
        else:
            engine.remove(self.object_id)


def probe_labels(lab: Path | None = None) -> dict[str, str]:
    """Return the labels of a probe: this process, and the lab that it checks, if any."""
    owner: JsonObject = {**members(this_process()), "machine_id": machine_id(), "uid": os.getuid()}
    if lab is not None:
        owner["lab"] = str(lab)
    return {Labels.PROBE: "1", Labels.OWNER: json.dumps(owner, sort_keys=True)}


def find_probes(engine: Engine) -> list[Probe]:
    """Return every probe of an engine, by any process. Raises `EngineUnavailable`."""
    return list(_probes(engine))


def remove_left_probes(engine: Engine) -> None:
    """Remove the probes whose processes have certainly ended, if the engine allows it.

    Raises `EngineUnavailable`.
    """
    for probe in find_probes(engine):
        if probe.state is ProbeState.LEFT:
            with suppress(ContainerFailed):
                probe.remove(engine)


def _probes(engine: Engine) -> Iterator[Probe]:
    probe_filter = {Labels.PROBE: None}
    for container in engine.containers_with_labels(probe_filter):
        if container.name.startswith(NAME):
            judged = _judge(container.labels, age_s := _age_s(container.created_at))
            yield Probe(container.name, container.container_id, False, *judged, age_s)
    for network in Networks(engine).with_labels(probe_filter):
        if network.name.startswith(NAME):
            judged = _judge(network.labels, age_s := _age_s(network.created_at))
            yield Probe(network.name, network.network_id, True, *judged, age_s)


def _age_s(created_at: float) -> float:
    return max(0.0, clock.unix_time() - created_at) if created_at else 0.0


def _judge(labels: Mapping[str, str], age_s: float) -> tuple[ProbeState, str]:
    """Return the state of a probe's process, and a name for the process."""
    try:
        document = json.loads(labels.get(Labels.OWNER, ""))
        owner = Owner(document["host"], int(document["pid"]), document["process_token"])
        machine, name = document["machine_id"], f"process {owner.pid} on {owner.machine}"
        if document.get("lab") is not None:
            name += f", for {document['lab']}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        state = ProbeState.LEFT if age_s > _MAX_AGE_S else ProbeState.UNSEEN
        return state, "a process of an earlier version, which left no name"
    if process_is_dead(owner) or _is_of_earlier_boot(owner, machine):
        return ProbeState.LEFT, name
    seen = owner.host == this_process().host
    return ProbeState.USED if seen else ProbeState.UNSEEN, name


def _is_of_earlier_boot(owner: Owner, machine: str) -> bool:
    """Return whether a process ran on this machine before the machine's last start."""
    here, there = this_process().host.split(" "), owner.host.split(" ")
    is_here = bool(machine) and machine == machine_id() and here[0] == there[0]
    return is_here and len(here) == len(there) == 3 and here[1] != there[1] and here[2] == there[2]
