"""How short of processors, memory and disk a trial was, from the counters that `trial.sh` wrote.

They are the kernel's: of the container's control group, read when every other process had been
killed, and of the machine at the beginning and at the end. What a kernel does not tell is left out.
Call it only if `trial.sh` ended the trial: until then the agent can write the files too.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path

from labledger.files.untrusted_files import UnsafeFile, UntrustedFile
from labledger.records import JsonObject
from labledger.records.resource_pressure import FIELDS

_CAP = 8 * 1024
_TICKS_PER_S = 100
"""Of the clock of `trial.sh`, and of /proc/stat."""
_MIN_MEASURED_S = 1.0
"""Over a shorter time, ticks do not tell how many processors a machine has."""
_IDLE = (3, 4)
"""Where /proc/stat has the time without work, and that of waiting for disks."""
_STEAL = 7
_TIMES = 8
"""How many times of /proc/stat are counted: those of guests are in others."""
_LINE = re.compile(r"([a-z]+) (.*)")
_MACHINE = re.compile(r"([0-9]{1,18}) cpu((?: +[0-9]{1,18}){4,20})")
_TOTAL = re.compile(r"some .*\btotal=([0-9]{1,18})")
_COUNTER = re.compile(r"(?:([a-z_]+) )?([0-9]{1,18})")
_WAITS = {"cpu": "cpu_some_s", "memory": "memory_some_s", "io": "io_some_s"}
_COUNTERS = {
    ("stat", "usage_usec"): ("cpu_used_s", 1e6),
    ("stat", "throttled_usec"): ("cpu_throttled_s", 1e6),
    ("stat", "throttled_time"): ("cpu_throttled_s", 1e9),
    ("used", None): ("cpu_used_s", 1e9),
}
"""Field and unit of the counters of control groups of both versions."""


def pressure_of(folder: Path, grader_folder: Path | None = None) -> JsonObject:
    """Return the evidence `ext.pressure` of a trial, {} if nothing is known.

    `grader_folder` is that of a grader that had a start or a container of its own, which is added.
    """
    parts = [_read(folder, "pressure")]
    if grader_folder is not None:
        parts.append(_read(grader_folder, "grader_pressure"))
    names = [name for name in FIELDS if all(name in part for part in parts)]
    numbers = {name: sum(part[name] for part in parts) for name in names}
    if "processors" in numbers:
        numbers["processors"] = max(part["processors"] for part in parts)
    return {name: round(number, 3) for name, number in numbers.items()}


def _read(folder: Path, name: str) -> dict[str, float]:
    content = None
    with suppress(UnsafeFile):
        content = UntrustedFile(folder / "state", name).read(_CAP)
    return parse_counters((content or b"").decode("ascii", "replace"))


def parse_counters(text: str) -> dict[str, float]:
    """Return the numbers in what `trial.sh` wrote; without what is not there or no number."""
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
    """Return the clock and the machine's times in a line, nothing if that is not what it holds."""
    line = _MACHINE.fullmatch(words)
    times = () if line is None else tuple(map(int, line[2].split()[:_TIMES]))
    return (int(line[1]), *times) if line and len(times) == _TIMES else ()


def _of_machine(
    begin: tuple[int, ...], end: tuple[int, ...], container: dict[str, float]
) -> dict[str, float]:
    """Return what the machine did between two lines of times."""
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
