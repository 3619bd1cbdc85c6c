"""The steps of a trajectory as text for a person, one paragraph per step.

The text contains everything that an agent wrote, including control characters. The caller must
escape it for display.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise

from labledger.records import JsonObject
from labledger.text.figures import usd
from labledger.text.words import counted
from labledger.trajectories.atif import Metrics, Step, StepResult, ToolCall, text_of


def stored_cuts(evidence: JsonObject) -> list[str]:
    """Return the reasons why a stored trajectory lacks steps; empty if it is complete.

    `evidence` is the evidence of its trial.
    """
    if "trajectory" not in evidence.get("evidence", {}):
        return []
    ext = evidence.get("ext", {})
    cuts = ext.get("trajectory", {}).get("cuts")
    if cuts is not None:
        return list(cuts)
    # Earlier versions named the cuts only among the problems.
    problems = ext.get("problems", {}).get("trajectory", "").split("; ")
    return _earlier_cuts(problems)


def _earlier_cuts(problems: list[str]) -> list[str]:
    cuts = [problem for problem in problems if problem.endswith("and were left out")]
    before_end = (first for first, second in pairwise(problems) if second == "the rest is lost")
    return [f"{first}; the rest is lost" for first in before_end] + cuts


def cut_notice(cuts: list[str]) -> str:
    """Return the sentence above an incomplete list of steps."""
    return f"These steps are not all that the agent did: {'; '.join(cuts)}."


def conversation(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the text of each step, with a line end after each line."""
    for step in steps:
        yield "\n".join(_lines(step)) + "\n\n"


def _lines(step: Step) -> Iterator[str]:
    yield _title(step)
    if step.reasoning_content:
        yield from _marked("~ ", step.reasoning_content)
    if message := text_of(step.message):
        yield message
    for call in step.tool_calls or ():
        yield _call(call)
        for result in step.results_of(call):
            yield from _result(result)
    for result in step.other_results:
        yield from _result(result)
    if characters := (step.extra or {}).get("cut_characters"):
        yield f"… and more, which was too long to be kept (about {characters} characters)"


def _title(step: Step) -> str:
    words = [f"[{step.step_id}] {step.source}"]
    words += [step.model_name] if step.model_name else []
    conversation = (step.extra or {}).get("conversation")
    words += [f"conversation {conversation}"] if conversation else []
    words += [step.timestamp] if step.timestamp else []
    return ", ".join([*words, *figures(step.metrics)])


def figures(metrics: Metrics | None) -> Iterator[str]:
    """Yield the known tokens and cost of a step as phrases."""
    if metrics is None:
        return
    if metrics.prompt_tokens is not None:
        cached = f" ({metrics.cached_tokens:,} cached)" if metrics.cached_tokens else ""
        yield f"{counted(metrics.prompt_tokens, 'token')} in{cached}"
    if metrics.completion_tokens is not None:
        yield f"{metrics.completion_tokens:,} out"
    if metrics.cost_usd is not None:
        yield usd(metrics.cost_usd, 4)


def _call(call: ToolCall) -> str:
    arguments = call.arguments
    if list(arguments) in (["command"], ["cmd"]):
        return f"$ {next(iter(arguments.values()))}"
    return f"{call.function_name} {json.dumps(arguments, ensure_ascii=False)}"


def _result(result: StepResult) -> Iterator[str]:
    facts = {key: value for key, value in (result.extra or {}).items() if value is not None}
    if facts:
        yield "  < " + ", ".join(f"{key}: {value}" for key, value in facts.items())
    yield from _marked("  > ", text_of(result.content))


def _marked(mark: str, text: str) -> Iterator[str]:
    return (f"{mark}{line}" for line in text.split("\n")) if text else iter(())
