"""The instruction of an agent with a profile: the text that it is started with, from its task.

Without a template it is the first of the task's fields `instruction` (as of Harbor),
`problem_statement` (SWE-bench), `prompt` (HumanEval, MBPP) and `question` that is there. A template
has places such as ``{{instruction}}``, ``{{task.repo}}`` or ``{{bindings.style}}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labledger.experiment.authored_fields import FieldProblem, text
from labledger.records import JsonObject

FIELDS = ("instruction", "problem_statement", "prompt", "question")
"""The fields of a task that may be its instruction, in the order in which they are looked for."""
_PLACE = re.compile(r"\{\{\s*([^{}\s]+)\s*\}\}")


def instruction(row: JsonObject, template: str | None, bindings: Mapping[str, Any]) -> str:
    """Return the instruction for a task's row. Raises `ValueError` for what the row lacks."""
    if template is None:
        return _usual(row)

    def value(match: re.Match[str]) -> str:
        first, *steps = match[1].split(".")
        if match[1] == "instruction":
            return _usual(row)
        found: Any = bindings if first == "bindings" else row.get(first)
        for step in steps:
            found = found.get(step) if isinstance(found, dict) else None
        if found is None:
            raise ValueError(f"the instructions name {match[0]}, and the task has no {match[1]}")
        return text(found)

    return _PLACE.sub(value, template)


def _usual(row: JsonObject) -> str:
    task = row.get("task")
    fields = task if isinstance(task, dict) else {}
    for name in FIELDS:
        found = fields.get(name)
        if isinstance(found, str) and found.strip():
            return found
    named = ", ".join(f"task.{name}" for name in FIELDS)
    raise ValueError(f"the task has no instruction for its agent: none of {named} is a text")


def find_instruction_problems(
    row: JsonObject, used: Iterable[tuple[str | None, Mapping[str, Any]]]
) -> Iterator[FieldProblem]:
    """Yield what a task's row lacks for its instruction by each template, with its bindings."""
    messages = set()
    for template, bindings in used:
        try:
            instruction(row, template, bindings)
        except ValueError as error:
            messages.add(str(error))
    hint = "add the field, or write runtime.agent.instructions with {{task.FIELD}}"
    yield from (FieldProblem(("task",), message, hint) for message in sorted(messages))
