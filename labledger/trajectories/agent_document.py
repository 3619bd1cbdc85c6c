"""A trajectory that an agent wrote itself: checked, and then stored unchanged.

It is read twice, item by item, so that it takes little memory and is not stored if it has problems.
Steps beyond `MAX_STEPS` are neither checked nor stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import SEEK_END
from itertools import islice
from typing import Any, BinaryIO

from labledger.errors import MalformedJson
from labledger.records import JsonObject, json_schemas
from labledger.records.json_schemas import dotted
from labledger.trajectories.atif import (
    MAX_STEPS,
    SCHEMA,
    Head,
    Step,
    joint_problems,
    subagent_problems,
)
from labledger.trajectories.json_reading import LogFacts, read_members

FILE = "trajectory.json"
"""The name of the file."""
MAX_BYTES = 32 << 20
"""The most bytes of a document. Checking the smallest steps takes some seconds per megabyte."""
MAX_PROBLEMS = 20
"""The most problems that are listed."""
_BATCH = 50
_MAX_MEMBERS = 100
"""The most members of a document, known or unknown."""


def find_problems(file: BinaryIO) -> list[str]:
    """Return the first `MAX_PROBLEMS` problems of the document in a file."""
    size = file.seek(0, SEEK_END)
    if size > MAX_BYTES:
        return [f"has {size:,} bytes; at most {MAX_BYTES:,} are read"]
    file.seek(0)
    try:
        return list(islice(_problems(file), MAX_PROBLEMS))
    except MalformedJson as error:
        return [str(error)]


def _problems(file: BinaryIO) -> Iterator[str]:
    head: JsonObject = {}
    batch: list[Any] = []
    done = 0  # The number of steps that are checked.
    for name, value in read_members(file, "steps"):
        if name != "steps":
            if name in head:
                raise MalformedJson(f"has the key {name[:80]!r} twice")
            if len(head) == _MAX_MEMBERS:
                raise MalformedJson(f"has more than {_MAX_MEMBERS} members")
            head[name] = value
            continue
        if done >= MAX_STEPS:
            continue
        batch.append(value)
        if len(batch) == _BATCH:
            yield from _problems_of_steps(batch, done)
            done, batch = done + len(batch), []
    yield from _problems_of_steps(batch, done)
    some_step = {"step_id": 1, "source": "user", "message": ""}
    steps = [some_step] if done or batch else []
    for path, message in json_schemas.problems({**head, "steps": steps}, SCHEMA):
        yield f"{dotted(path) or 'the document'}: {message}"
    yield from subagent_problems(head.get("subagent_trajectories"))


def _problems_of_steps(steps: list[Any], done: int) -> Iterator[str]:
    """Yield the problems of `steps`, which follow `done` other steps."""
    if not steps:
        return
    head = {"schema_version": "ATIF-v1.8", "agent": {"name": "", "version": ""}}
    for path, message in json_schemas.problems({**head, "steps": steps}, SCHEMA):
        _, index, *rest = path
        yield f"{dotted(('steps', int(index) + done, *rest))}: {message}"
    for number, step in enumerate(steps, done + 1):
        yield from joint_problems(step, number)


class AgentDocument:
    """A document without problems, while its steps are read."""

    def __init__(self, file: BinaryIO, facts: LogFacts | None = None) -> None:
        self._file, self._facts = file, facts or LogFacts()
        self._head: JsonObject = {}

    def steps(self) -> Iterator[Step]:
        """Yield the first `MAX_STEPS` steps. Raises `MalformedJson` if one is not valid."""
        count = 0
        for name, value in read_members(self._file, "steps", is_stored=True):
            if name == "steps":
                count += 1
                if count > MAX_STEPS:
                    continue
                try:
                    step = Step.from_json(without_nulls(value))
                except (TypeError, ValueError, KeyError, AttributeError):
                    raise MalformedJson("has a step that is not valid") from None
                yield step
            elif name != "schema_version":
                self._head[name] = value
        if count > MAX_STEPS:
            left_out = f"it has {count:,} steps; the first {MAX_STEPS:,} were kept"
            self._facts.cuts.append(left_out)

    @property
    def head(self) -> Head:
        """The document without its steps. Complete after all steps were read."""
        return Head.from_json(without_nulls(self._head))


def without_nulls(document: JsonObject) -> JsonObject:
    """Return an object without its null members, which have the same meaning as absent ones."""
    return {key: value for key, value in document.items() if value is not None}
