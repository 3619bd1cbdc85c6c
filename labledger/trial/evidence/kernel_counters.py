"""Read the kernel counters that `trial.sh` wrote, and find a trial's shortage of resources in them.

Read them only if `trial.sh` ended the trial, because the agent can write the files earlier.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from labledger.files.untrusted_files import read_ascii
from labledger.records import JsonObject
from labledger.records.resource_pressure import FIELDS, PHASES
from labledger.trial import contract

_MAX_TEXT = 32 * 1024
_TICKS_PER_S = 100
"""Ticks of the clock of `trial.sh`, and of /proc/stat."""
_MIN_MEASURED_S = 1.0
"""Over a shorter time, ticks do not show how many processors a machine has."""
_IDLE = (3, 4)
"""The places in /proc/stat of the idle time and of the time waiting for disks."""
_STEAL = 7
_TIMES = 8
"""How many times of /proc/stat to count. The times of guests are contained in others."""
_LINE = re.compile(r"([a-z]+) (.*)")
_MACHINE = re.compile(r"([0-9]{1,18}) cpu((?: +[0-9]{1,18}){4,20})")
_TOTAL = re.compile(r"some .*\btotal=([0-9]{1,18})")
_COUNTER = re.compile(r"(?:([a-z_]+) )?([0-9]{1,18})")
_WAITS = {
    "cpu": "cpu_some_s",
    "memory": "memory_some_s",
    "io": "io_some_s",
    "machine": "machine_cpu_some_s",
}
_EDGE = re.compile(
    r"(?P<kind>machine|cpu|stat|used|)(?P<edge>begin|end)(?P<phase>setup|agent|grader) (?P<rest>.*)"
)
_OWN_USE_S = 0.05
"""How much of a processor `trial.sh` itself may have used during a phase, in seconds."""
_PHASE_WAITS = re.compile(r"waits(setup|agent|grader) ([0-9]{1,18}) ([0-9]{1,18})")
_COUNTERS = {
    ("stat", "usage_usec"): ("cpu_used_s", 1e6),
    ("stat", "throttled_usec"): ("cpu_throttled_s", 1e6),
    ("stat", "throttled_time"): ("cpu_throttled_s", 1e9),
    ("used", None): ("cpu_used_s", 1e9),
}
"""Field and unit of the counters of control groups of both versions."""


def counter_texts(folder: Path | None, grader_folder: Path | None = None) -> list[str]:
    """Return the counters that `trial.sh` wrote, one text for each start of a container.

    `folder` belongs to the agent's start; None if no agent ran. `grader_folder` belongs to a
    grader with its own start or container; None if it had none.
    """
    files = ((folder, "pressure"), (grader_folder, "grader_pressure"))
    return [
        read_ascii(start / "state", name, _MAX_TEXT) for start, name in files if start is not None
    ]


def pressure_of(folder: Path, grader_folder: Path | None = None) -> JsonObject:
    """Return the evidence `ext.pressure` of a trial; {} if nothing is known.

    Kernel counters of the container's control group are read when every other process had been
    killed, and counters of the machine at the beginning and the end. Counters that a kernel lacks
    are left out. `grader_folder` belongs to a grader with its own start or container, whose counts
    are added.
    """
    texts = counter_texts(folder, grader_folder)
    parts = list(map(parse_counters, texts))
    names = [name for name in FIELDS if all(name in part for part in parts)]
    numbers = {name: sum(part[name] for part in parts) for name in names}
    # A part of less than a second does not show how many processors there are.
    if processors := [part["processors"] for part in parts if "processors" in part]:
        numbers["processors"] = max(processors)
    pressure: JsonObject = {name: round(number, 3) for name, number in numbers.items()}
    phases = {phase: numbers for text in texts for phase, numbers in parse_phases(text).items()}
    return pressure | ({PHASES: phases} if pressure else {})


def parse_phases(text: str) -> dict[str, dict[str, float]]:
    """Return the same numbers for each phase of a second or more, by its name.

    With control groups of version 1, the kernel does not sum up how long processes waited.
    Processes that exist at the phase's end, or at its time limit, have their own counts. Other
    processes are assumed to have waited as long for each second that they ran.
    """
    edges: dict[tuple[str, str], _Edge] = defaultdict(_Edge)
    waits: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        if at := _EDGE.fullmatch(line):
            edges[at["phase"], at["edge"]].add(at["kind"], at["rest"])
        elif counts := _PHASE_WAITS.fullmatch(line):
            waits[counts[1]] = int(counts[2]), int(counts[3])
    phases = {}
    for phase in contract.PHASE_NAMES:
        numbers = edges[phase, "end"].since(edges[phase, "begin"])
        ran, waited = waits.get(phase, (0, 0))
        if numbers.get("duration_s", 0.0) < _MIN_MEASURED_S:
            continue
        if ran and "cpu_used_s" in numbers:
            of_others = max(0.0, numbers["cpu_used_s"] - ran / 1e6 - _OWN_USE_S)
            estimate = waited / 1e6 + of_others * waited / ran
            numbers["cpu_waited_s"] = min(estimate, numbers["duration_s"])
        phases[phase] = {name: round(numbers[name], 3) for name in FIELDS if name in numbers}
    return phases


@dataclass(slots=True)
class _Edge:
    """The counters at one edge of a phase."""

    times: tuple[int, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, rest: str) -> None:
        if not kind:
            self.times = _times(rest)
        elif kind in _WAITS and (waited := _TOTAL.fullmatch(rest)):
            self.counters[_WAITS[kind]] = int(waited[1]) / 1e6
        elif (counter := _COUNTER.fullmatch(rest)) and (kind, counter[1]) in _COUNTERS:
            name, unit = _COUNTERS[kind, counter[1]]
            self.counters[name] = int(counter[2]) / unit

    def since(self, begin: _Edge) -> dict[str, float]:
        """Return the counts since another edge, for the counters that both edges have."""
        names = self.counters.keys() & begin.counters.keys()
        numbers = {name: max(0.0, self.counters[name] - begin.counters[name]) for name in names}
        return _of_machine(begin.times, self.times, numbers) | numbers


def parse_counters(text: str) -> dict[str, float]:
    """Return the numbers that `trial.sh` wrote, without missing and malformed ones."""
    numbers: dict[str, float] = {}
    machine: dict[str, tuple[int, ...]] = {}
    waited_before: int | None = None
    for line in map(_LINE.fullmatch, text.splitlines()):
        if line is None:
            continue
        kind, rest = line.groups()
        if kind in {"begin", "end"}:
            machine[kind] = _times(rest)
        elif kind in _WAITS and (waited := _TOTAL.fullmatch(rest)):
            numbers[_WAITS[kind]] = int(waited[1]) / 1e6
        elif kind == "machinebegin" and (waited := _TOTAL.fullmatch(rest)):
            waited_before = int(waited[1])
        elif kind == "machineend" and (waited := _TOTAL.fullmatch(rest)) and waited_before:
            numbers["machine_cpu_some_s"] = max(0, int(waited[1]) - waited_before) / 1e6
        elif (counter := _COUNTER.fullmatch(rest)) and (kind, counter[1]) in _COUNTERS:
            name, unit = _COUNTERS[kind, counter[1]]
            numbers[name] = int(counter[2]) / unit
    return _of_machine(machine.get("begin", ()), machine.get("end", ()), numbers) | numbers


def _times(words: str) -> tuple[int, ...]:
    """Return the clock and the machine's times in a line, or () if the line has others."""
    line = _MACHINE.fullmatch(words)
    times = () if line is None else tuple(map(int, line[2].split()[:_TIMES]))
    return (int(line[1]), *times) if line and len(times) == _TIMES else ()


def _of_machine(
    begin: tuple[int, ...], end: tuple[int, ...], container: dict[str, float]
) -> dict[str, float]:
    """Return the machine's activity between two lines of times."""
    if not begin or not end:
        return {}
    both = zip(begin, end, strict=True)
    elapsed, *spent = (max(0, later - sooner) / _TICKS_PER_S for sooner, later in both)
    numbers = {"duration_s": elapsed, "steal_s": spent[_STEAL]}
    if elapsed >= _MIN_MEASURED_S and (processors := math.floor(sum(spent) / elapsed + 0.5)):
        numbers["processors"] = float(processors)
    used = container.get("cpu_used_s")
    if used is not None:
        busy = sum(spent) - sum(spent[idle] for idle in _IDLE) - spent[_STEAL]
        numbers["cpu_others_s"] = max(0.0, busy - used)
    return numbers
