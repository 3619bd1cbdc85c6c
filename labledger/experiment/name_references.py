"""The syntax of `$NAME` references in authored text.

`$NAME` and `${NAME}` refer to a binding, to a name of the container contract or to the environment;
`$$` is a dollar sign. Bindings are substituted when a command is resolved (`phase_commands`), the
other names when a trial's phase scripts are written (`trial.life.inputs`). Checks use the names
alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_REFERENCE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})"
)


class Part(NamedTuple):
    """A piece of authored text: literal text, or the name that a `$NAME` refers to."""

    text: str
    is_name: bool


def parse(text: str) -> list[Part]:
    """Split `text` into literals and names. A dollar sign before anything else is literal."""
    parts: list[Part] = []
    literal = ""
    end = 0
    for match in _REFERENCE.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        if match["escaped"]:
            literal += "$"
            continue
        if literal:
            parts.append(Part(literal, is_name=False))
            literal = ""
        parts.append(Part(match["name"] or match["braced"], is_name=True))
    literal += text[end:]
    if literal or not parts:
        parts.append(Part(literal, is_name=False))
    return parts


CONTRACT_NAMES = frozenset(
    {
        *("AGENTLAB_RUN_ID", "AGENTLAB_TRIAL_ID", "AGENTLAB_VARIANT_ID", "AGENTLAB_TASK_ID"),
        *("AGENTLAB_REPL_IDX", "AGENTLAB_TIMEOUT_MS", "AGENTLAB_TASK_IMAGE"),
        *("AGENTLAB_TASK_PATH", "AGENTLAB_BINDINGS_PATH", "AGENTLAB_POLICY_PATH"),
        *("AGENTLAB_RESULT_PATH", "AGENTLAB_TRAJECTORY_PATH", "AGENTLAB_AGENT_EXIT_STATUS"),
        *("AGENTLAB_BENCHMARK_PREDICTION_PATH", "AGENTLAB_BENCHMARK_SCORE_PATH", "WORKSPACE"),
    }
)
"""Every name that the container contract defines; only the grader has the agent's exit status."""


def is_contract_name(name: str) -> bool:
    """Return True for a name that only labledger may set, in every container."""
    return name.startswith("AGENTLAB_") or name == "WORKSPACE"


def names(text: str) -> Iterator[str]:
    """Yield the names that `text` refers to, in its order."""
    return (part.text for part in parse(text) if part.is_name)


def substitute(text: str, known: Mapping[str, str]) -> str:
    """Return `text` with known names replaced by their values. The result is escaped again."""
    return "".join(
        escape(known[part.text])
        if part.is_name and part.text in known
        else f"${{{part.text}}}"
        if part.is_name
        else escape(part.text)
        for part in parse(text)
    )


def expand(text: str, known: Mapping[str, str]) -> str:
    """Return the final text, with every name replaced. Raises `KeyError` for an unknown name."""
    return "".join(known[part.text] if part.is_name else part.text for part in parse(text))


def escape(text: str) -> str:
    """Return authored text that stands for `text` itself."""
    return text.replace("$", "$$")
