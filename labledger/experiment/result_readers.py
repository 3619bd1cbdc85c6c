"""Readers of what graders leave, by the names that `from` of `results` may have.

A format of benchmarks whose graders leave a verdict in a form of their own declares its reader
beside its judge, and registers it as an entry point of the group `labledger.result_readers`.
Settings are checked and trials judged by what the reader says. Experiments may use the names that
their schema lists, and no package can replace a reader of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from labledger import plug_ins
from labledger.experiment.grading_settings import CONTRACT

ENTRY_POINT_GROUP = "labledger.result_readers"


@dataclass(frozen=True, slots=True)
class ResultReader:
    """How the verdict of a grader is read, and which settings that takes."""

    required: Mapping[str, str] = field(default_factory=dict)
    """The keys of `results` that must be set, each with what it is for."""
    optional: frozenset[str] = frozenset()
    """The keys that may be set."""
    ignores_exit_status: bool = False
    """Whether a grader that fails may still have left a verdict."""
    judge: Callable[..., None] | None = None
    """A `Judge` of `trial.evidence.grading`; None for the one of labledger's own contract."""

    @property
    def keys(self) -> frozenset[str]:
        return self.optional.union(self.required)


_OWN_CONTRACT = ResultReader()


@cache
def find_reader(name: str) -> ResultReader:
    """Return the reader of a name that the schema allows. It is imported when it is needed."""
    if name == CONTRACT:
        return _OWN_CONTRACT
    first, *_ = plug_ins.registered(ENTRY_POINT_GROUP)[name].values()
    reader: ResultReader = first.load()
    return reader


def readers_with(key: str) -> list[str]:
    """Return the names of the readers for which a key of `results` may be set."""
    return [
        name for name in plug_ins.registered(ENTRY_POINT_GROUP) if key in find_reader(name).keys
    ]
