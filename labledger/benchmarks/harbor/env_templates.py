"""Environment variables of Harbor tasks, as texts of an experiment.

A value that is `${NAME}` as a whole comes from outside. `${NAME:-default}` does so if NAME is set
there; `benchmarks.translate` decides that. Any other value is literal, whatever dollars it has.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)

_SOLUTION_PREFIX = "HARBOR_SOLUTION_"
"""Of the names by which the solution's variables reach the agent `oracle`."""

_UNSET = "labledger:unset"
"""What the agent `oracle` gets for a variable with a default that is not set outside."""


def authored_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables as `experiment.yaml` and `tasks.jsonl` have them."""
    return {name: _authored(value) for name, value in env.items()}


def _authored(value: str) -> str:
    match = _TEMPLATE.fullmatch(value)
    return value.replace("$", "$$") if match is None else value


def unusable_names(env: Mapping[str, str]) -> list[str]:
    """Return the names in templates that no environment variable can have."""
    matches = [_TEMPLATE.fullmatch(value) for value in env.values()]
    return [m[1] for m in matches if m is not None and not (m[1].isidentifier() and m[1].isascii())]


def outside_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return what the variant `oracle` needs from outside for the solution's variables."""
    names: dict[str, str] = {}
    for value in env.values():
        match = _TEMPLATE.fullmatch(value)
        if match is not None:
            reference = f"${{{match[1]}}}" if match[2] is None else f"${{{match[1]}:-{_UNSET}}}"
            names[_SOLUTION_PREFIX + match[1]] = reference
    return names


def solution_script(env: Mapping[str, str]) -> bytes:
    """Return a shell script that exports the solution's variables, without values from outside."""
    lines = ["# The variables of [solution.env]."]
    for name, value in env.items():
        match = _TEMPLATE.fullmatch(value)
        if match is None:
            lines.append(f"export {name}={shlex.quote(value)}")
            continue
        unset = "" if match[2] is None else _UNSET
        lines.append(f'export {name}="${{{_SOLUTION_PREFIX}{match[1]}-{unset}}}"')
        if match[2] is not None:
            # One that is set to nothing has no default.
            lines.append(f'[ "${name}" != {_UNSET} ] || {name}={shlex.quote(match[2])}')
    return ("\n".join(lines) + "\n").encode()
