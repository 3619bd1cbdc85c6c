"""The Agent Trajectory Interchange Format, version 1.8, and checks of its documents.

A document has an agent and its steps. `schemas/atif_v1_8.jsonschema` defines the parts. The rules
that join parts are here. Documents of versions 1.0 to 1.7 follow the same rules. Harbor's RFC 0001
defines the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from labledger.records import JsonObject, json_schemas
from labledger.records.json_codec import Section
from labledger.records.json_schemas import dotted

VERSION = "ATIF-v1.8"
"""The `schema_version` of the documents that labledger makes."""
SCHEMA = "atif_v1_8"
MAX_STEPS = 100_000
"""The most steps of a trajectory that are stored."""

Content = Any
"""Text, or a list of content parts: objects with `type` and either `text` or `source`."""


@dataclass(frozen=True, slots=True)
class ToolCall(Section):
    """The model's request to run a tool with arguments."""

    tool_call_id: str
    function_name: str
    arguments: JsonObject
    extra: JsonObject | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"extra"})


@dataclass(frozen=True, slots=True)
class StepResult(Section):
    """The result of a call, or an observation without a call."""

    source_call_id: str | None = None
    """The id of a call in the same step; None without a call."""
    content: Content = None
    subagent_trajectory_ref: list[JsonObject] | None = None
    extra: JsonObject | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"source_call_id", "content", "subagent_trajectory_ref", "extra"}
    )


@dataclass(frozen=True, slots=True)
class Observation(Section):
    """The results that the environment returned for a step."""

    results: tuple[StepResult, ...]


@dataclass(frozen=True, slots=True)
class Metrics(Section):
    """The tokens and the cost of a step. None means unknown."""

    prompt_tokens: int | None = None
    """All tokens of the request, including cached ones."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `prompt_tokens` that was read from a cache."""
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: JsonObject | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {
            *("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "extra"),
            *("prompt_token_ids", "completion_token_ids", "logprobs"),
        }
    )


@dataclass(frozen=True, slots=True)
class Step(Section):
    """One step of a trajectory. Fields for agent steps are None in other steps."""

    step_id: int = 0
    """From 1, without gaps; 0 until a document is written."""
    timestamp: str | None = None
    source: str = "agent"
    """`system`, `user` or `agent`."""
    model_name: str | None = None
    reasoning_effort: Any = None
    message: Content = ""
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    """Whether it repeats an earlier step that was sent to a model again."""
    llm_call_count: int | None = None
    extra: JsonObject | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {
            *("timestamp", "model_name", "reasoning_effort", "reasoning_content", "tool_calls"),
            *("observation", "metrics", "is_copied_context", "llm_call_count", "extra"),
        }
    )

    @property
    def results(self) -> tuple[StepResult, ...]:
        """The results in its observation."""
        return self.observation.results if self.observation else ()

    def results_of(self, call: ToolCall) -> list[StepResult]:
        """Return the results of one of its calls. A call in the background has two."""
        return [result for result in self.results if result.source_call_id == call.tool_call_id]

    @property
    def other_results(self) -> list[StepResult]:
        """The results that belong to none of the step's calls."""
        calls = {call.tool_call_id for call in self.tool_calls or ()}
        return [result for result in self.results if result.source_call_id not in calls]


@dataclass(frozen=True, slots=True)
class TrajectoryAgent(Section):
    """The program that took the steps, with its version and model."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[JsonObject] | None = None
    extra: JsonObject | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset({"model_name", "tool_definitions", "extra"})


@dataclass(frozen=True, slots=True)
class FinalMetrics(Section):
    """The tokens and the cost of all steps together. None means unknown."""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: JsonObject | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {
            *("total_prompt_tokens", "total_completion_tokens", "total_cached_tokens"),
            *("total_cost_usd", "total_steps", "extra"),
        }
    )


@dataclass(frozen=True, slots=True)
class Head(Section):
    """A trajectory without its version and its steps."""

    agent: TrajectoryAgent
    session_id: str | None = None
    """The agent's run, which may have several trajectories."""
    trajectory_id: str | None = None
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list[JsonObject] | None = None
    extra: JsonObject | None = None

    _OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {
            *("session_id", "trajectory_id", "notes", "final_metrics", "extra"),
            *("continued_trajectory_ref", "subagent_trajectories"),
        }
    )


def text_of(content: Content) -> str:
    """Return content as text. Other parts become their type and path."""
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part) for part in content or ())


def _part_text(part: JsonObject) -> str:
    if "text" in part:
        return str(part["text"])
    source = part.get("source") or {}
    return f"[{part.get('type')}: {source.get('media_type')}, {source.get('path')}]"


def document_problems(document: Any) -> Iterator[str]:
    """Yield the problems of a whole document, each with its place."""
    for path, message in json_schemas.problems(document, SCHEMA):
        yield f"{dotted(path) or 'the document'}: {message}"
    if not isinstance(document, dict):
        return
    steps = document.get("steps")
    for number, step in enumerate(steps if isinstance(steps, list) else (), 1):
        yield from joint_problems(step, number)
    yield from subagent_problems(document.get("subagent_trajectories"))


def joint_problems(step: Any, number: int) -> Iterator[str]:
    """Yield how a step does not fit its document: by its number, or results without a call."""
    if not isinstance(step, dict):
        return
    place = f"steps[{number - 1}]"
    step_id = step.get("step_id")
    if isinstance(step_id, int) and step_id != number:
        yield f"{place}.step_id: found {step_id}; expected {number}, as steps count from 1"
    calls = {call.get("tool_call_id") for call in _objects(step.get("tool_calls"))}
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, dict) else None
    for at, result in enumerate(_objects(results)):
        call = result.get("source_call_id")
        if isinstance(call, str) and call not in calls:
            yield (
                f"{place}.observation.results[{at}].source_call_id: found {call[:60]!r}; "
                f"expected the id of a call in the same step"
            )


def subagent_problems(subagents: Any) -> Iterator[str]:
    """Yield the problems of trajectories inside another one."""
    seen: set[str] = set()
    for at, subagent in enumerate(_objects(subagents)):
        place = f"subagent_trajectories[{at}]"
        name = subagent.get("trajectory_id")
        if name is None:
            yield f"{place}: 'trajectory_id' is missing, by which steps refer to it"
        elif isinstance(name, str) and name in seen:
            yield f"{place}.trajectory_id: {name[:60]!r} names another one, too"
        elif isinstance(name, str):
            seen.add(name)
        steps = subagent.get("steps")
        for number, step in enumerate(steps if isinstance(steps, list) else (), 1):
            for problem in joint_problems(step, number):
                yield f"{place}.{problem}"
        for problem in subagent_problems(subagent.get("subagent_trajectories")):
            yield f"{place}.{problem}"


def _objects(value: Any) -> Iterable[JsonObject]:
    items = value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict))
