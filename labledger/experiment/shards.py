"""Shards: disjoint parts of one experiment that are run apart, on several machines or days.

A shard is no part of what an experiment is: all shards of one experiment have its digest, so that
their runs can be compared and reported as one. `resolve` leaves out the slots of other shards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from labledger.errors import InvalidInput, Parameter, Problem
from labledger.experiment.stored_sections import Section

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard(Section):
    """One of several disjoint shards of an experiment, such as the second of five."""

    number: int
    """From 1 to `of`."""
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shard of a text such as ``2/5``. Raises `InvalidInput`."""
        match = _SHARD.fullmatch(text)
        if match is not None and 1 <= int(match[1]) <= int(match[2]):
            return cls(int(match[1]), int(match[2]))
        message = f"found {text!r}; expected K/N, such as 2/5 for the second of five shards"
        raise InvalidInput("the options are not valid", [Problem(Parameter("shard"), message)])

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, task_idx: int, repl_idx: int, tasks: int) -> bool:
        """Return whether a task's replication belongs to this shard, with every variant.

        Shards get whole tasks in turn, so that each has complete pairs, and needs the images of
        its own tasks alone. Where there are fewer tasks than shards, they get single replications
        in turn. `task_idx` is the task's position among the `tasks` selected.
        """
        cell = task_idx if tasks >= self.of else task_idx + repl_idx * tasks
        return cell % self.of == self.number - 1
