"""Read what a trial used of the machine from the counters that `trial.sh` wrote.

Each number of `ResourceUse` has one function here, which finds it in the counters of one start.
Read them only if `trial.sh` ended the trial, because the agent can write the files earlier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from labledger.records.resource_use import ResourceUse

_COUNT = re.compile(r"[0-9]{1,18}")
"""A count of at most 18 digits; a larger one is wrong, and does not fit a ledger."""


def resource_use(texts: Iterable[str]) -> ResourceUse:
    """Return the numbers of a trial from the counters of each of its starts, which are added.

    A number that is missing or malformed in the counters of one start is unknown.
    """
    texts = list(texts)
    parts = {name: [read(text) for text in texts] for name, read in READERS.items()}
    known: dict[str, Any] = {
        name: sum(numbers)
        for name, counts in parts.items()
        if len(numbers := [count for count in counts if count is not None]) == len(texts) > 0
    }
    return ResourceUse(**{name: count for name, count in known.items() if count < 2**63})


def _block_bytes(text: str, key: str, operation: str) -> int | None:
    """Return the sum over all block devices; None if it is unknown.

    `key` names the count in control groups of version 2, and `operation` in version 1. Version 2
    lists no device before its first use, so an empty list means 0. With version 1, kernels from
    6.10 on count only on devices that some container limits, so an empty list means unknown.
    """
    counts = re.findall(rf"^block (?:.* )?{key}=(\S*)", text, re.MULTILINE)
    counts += re.findall(rf"^block \S+ {operation} (\S+)$", text, re.MULTILINE)
    is_complete = counts or "block io.stat" in text.splitlines()
    if not is_complete or not all(map(_COUNT.fullmatch, counts)):
        return None
    return sum(map(int, counts))


READERS: Mapping[str, Callable[[str], float | None]] = {
    "block_read_bytes": lambda text: _block_bytes(text, "rbytes", "Read"),
    "block_write_bytes": lambda text: _block_bytes(text, "wbytes", "Write"),
}
"""The function that reads each number from the counters of one start; None if it is unknown."""
