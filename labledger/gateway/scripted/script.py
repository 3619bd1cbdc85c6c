"""The script of a scripted provider: tasks with turns, their usage and their faults.

A script is a YAML or JSON file; docs/reference/provider-scripts.md explains its fields. All
problems of a file, such as unknown fields, are reported at once. A script holds no state. A
request itself shows which turn answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.records.bounded_yaml import NotYaml, load_yaml
from labledger.records.model_calls import Usage
from labledger.text.words import near_names

VERSION = 1
"""The only version of scripts."""

NO_TOKENS = Usage()
_MAX_BYTES = 16 << 20
"""The most bytes of a script that are read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong instead of an answer, or while one is streamed."""

    status: int | None = None
    """An HTTP status with an error of the API."""
    retry_after: float | None = None
    """Seconds in the header `Retry-After` of such an error."""
    message: str = "scripted fault"
    """The error's text. `{key}` becomes the key of the request."""
    cut_after: int | None = None
    """The connection ends after this many events of the stream, or bytes of a plain answer."""
    error_after: int | None = None
    """An error of the API follows after this many events of the stream."""
    wrong_json: bool = False
    """The answer is not JSON."""
    endless: bool = False
    """The stream never ends. Text follows as long as the client reads."""
    hang: bool = False
    """There is no answer, and the connection stays open."""
    reset: bool = False
    """The connection ends before an answer."""
    times: int = 1
    """How many requests for the turn meet it; 0 means all."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a task."""

    shell: str | None = None
    """A command for the agent to run, with its tool for commands."""
    write: Mapping[str, str] | None = None
    """Files for the agent to write, by a command or an edit: contents by name."""
    tool: Mapping[str, Any] | None = None
    """A call of a certain tool: its `name` and `arguments`."""
    text: str | None = None
    finish: str | None = None
    """The last words, in the form that ends the agent."""
    usage: Usage = NO_TOKENS
    wait_s: float = 0.0
    """Seconds before the answer."""
    pace_s: float = 0.0
    """Seconds between the events of a stream."""
    faults: tuple[Fault, ...] = ()
    """The faults that requests for this turn meet, in order, before one is answered."""


_ACTIONS = ("shell", "write", "tool", "text", "finish")
_FAULTS = {"status", "cut_after", "error_after", "wrong_json", "endless", "hang", "reset"}


@dataclass(frozen=True, slots=True)
class ScriptedTask:
    """The turns of the conversations that a text identifies."""

    name: str
    match: str
    """A text that the requests of its conversations contain."""
    turns: tuple[Turn, ...]
    model: str | None = None
    """The only model that the task applies to; None for every model."""
    plain: bool = False
    """Whether requests without a known tool also get its turns, instead of `auxiliary`."""

    def turn(self, number: int) -> Turn:
        """Return the turn after `number` answers; the last one for any later request."""
        return self.turns[min(number, len(self.turns) - 1)]


@dataclass(frozen=True, slots=True)
class Script:
    """The answers of a scripted provider."""

    tasks: tuple[ScriptedTask, ...]
    auxiliary: Turn = Turn(text="OK", usage=Usage(input=1, output=1))
    """The answer to requests that belong to no task, such as for titles or summaries."""
    keys: tuple[str, ...] = ()
    """The accepted keys. If empty, every request is accepted, also without a key."""

    def task_of(self, model: str, text: str) -> ScriptedTask | None:
        """Return the first task that a request belongs to."""
        return next(
            (
                task
                for task in self.tasks
                if task.match in text and (task.model is None or task.model == model)
            ),
            None,
        )


def read_script(path: Path) -> Script:
    """Return the script in a file. Raises `InvalidInput` with all problems, `LabLedgerError`."""
    try:
        with path.open("rb") as file:
            document = load_yaml(file.read(_MAX_BYTES))
    except OSError as error:
        raise LabLedgerError(f"could not read the script {path}: {error.strerror}") from error
    except NotYaml as error:
        raise LabLedgerError(f"the script {path} {error}") from None
    return parse_script(document, str(path))


def parse_script(document: Any, where: str = "the script") -> Script:
    """Return the script in a document. Raises `InvalidInput` with all of its problems."""
    reader = _Reader(where)
    script = reader.script(document)
    if reader.problems:
        raise InvalidInput(where, reader.problems)
    return script


class _Reader:
    """Reads a document, and collects its problems with their fields."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[Problem] = []

    def script(self, document: Any) -> Script:
        members = self._members(document, "", {"version", *_names(Script)})
        if members.get("version") != VERSION:
            self._report("version", f"expected {VERSION}, the only version of scripts")
        if not (tasks := self._list(members.get("tasks"), "tasks", self._task)):
            self._report("tasks", "expected at least one task")
        auxiliary = {}
        if "auxiliary" in members:
            auxiliary["auxiliary"] = self._turn(members["auxiliary"], "auxiliary")
        keys = self._list(members.get("keys"), "keys", self._text)
        return Script(tasks, keys=keys, **auxiliary)

    def _task(self, value: Any, at: str) -> ScriptedTask:
        members = self._members(value, at, _names(ScriptedTask))
        turns = self._list(members.get("turns"), f"{at}.turns", self._turn)
        if not turns:
            self._report(f"{at}.turns", "expected at least one turn")
        match = self._text(members.get("match"), f"{at}.match")
        model = members.get("model")
        return ScriptedTask(
            name=self._text(members.get("name", match), f"{at}.name"),
            match=match,
            turns=turns,
            model=None if model is None else self._text(model, f"{at}.model"),
            plain=self._flag(members, "plain", at),
        )

    def _turn(self, value: Any, at: str) -> Turn:
        members = dict(self._members(value, at, _names(Turn)))
        actions = [name for name in _ACTIONS if name in members]
        if len(actions) != 1:
            self._report(at, f"expected one of {', '.join(_ACTIONS)}")
        for name in {"shell", "text", "finish"} & members.keys():
            self._text(members[name], f"{at}.{name}")
        for name in {"write", "tool"} & members.keys():
            expected = {"name", "arguments"} if name == "tool" else None
            members[name] = self._members(members[name], f"{at}.{name}", expected)
        for name, content in members.get("write", {}).items():
            self._text(content, f"{at}.write.{name}")
        if "tool" in members:
            self._text(members["tool"].get("name"), f"{at}.tool.name")
        for name in {"wait_s", "pace_s"} & members.keys():
            members[name] = self._number(members[name], f"{at}.{name}")
        members["usage"] = self._usage(members.get("usage", {}), f"{at}.usage")
        members["faults"] = self._list(members.get("faults"), f"{at}.faults", self._fault)
        return Turn(**members)

    def _usage(self, value: Any, at: str) -> Usage:
        members = self._members(value, at, _names(Usage))
        return Usage(**{k: int(self._number(v, f"{at}.{k}")) for k, v in members.items()})

    def _fault(self, value: Any, at: str) -> Fault:
        members = dict(self._members(value, at, _names(Fault)))
        if len(_FAULTS & members.keys()) != 1:
            self._report(at, f"expected one of {', '.join(sorted(_FAULTS))}")
        for name in {"status", "cut_after", "error_after", "times"} & members.keys():
            members[name] = int(self._number(members[name], f"{at}.{name}"))
        if "retry_after" in members:
            members["retry_after"] = self._number(members["retry_after"], f"{at}.retry_after")
        for name in {"wrong_json", "endless", "hang", "reset"} & members.keys():
            self._flag(members, name, at)
        if "message" in members:
            self._text(members["message"], f"{at}.message")
        return Fault(**members)

    def _members(self, value: Any, at: str, allowed: set[str] | None) -> Mapping[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self._report(at, "expected a mapping")
            return {}
        known = {}
        for key, item in value.items():
            if allowed is None or key in allowed:
                known[key] = item
            else:
                near = near_names(key, allowed)
                hint = (
                    f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(allowed))}"
                )
                self._report(f"{at}.{key}" if at else key, "unknown field", hint)
        return known

    def _list(self, value: Any, at: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self._report(at, "expected a list")
            return ()
        return tuple(read(item, f"{at}[{number}]") for number, item in enumerate(value))

    def _text(self, value: Any, at: str) -> str:
        if isinstance(value, str) and value:
            return value
        self._report(at, "expected text")
        return "?"

    def _number(self, value: Any, at: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
            return value
        self._report(at, "expected a number, 0 or more")
        return 0

    def _flag(self, members: Mapping[str, Any], name: str, at: str) -> bool:
        value = members.get(name, False)
        if not isinstance(value, bool):
            self._report(f"{at}.{name}", "expected true or false")
        return value is True

    def _report(self, field: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(self._where, message, field=field or None, hint=hint))


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}
