"""The options of the command line in place of the library's parameters, in messages.

The library names its own parameters: as the place of a problem (`Parameter`), and in sentences as
arguments in backticks, such as `frozen=True`. `console` and the printing of errors translate both.
"""

from __future__ import annotations

import re
from dataclasses import replace

from labledger.api import InvalidInput, LabLedgerError, Parameter

_IRREGULAR = {
    "agents": "--agent",
    "benchmark": "--from",
    "env_files": "--env-file",
    "from_runs": "--from",
    "lease_ttl_s": "--lease-ttl",
    "max_bytes": "--max-size",
    "min_free_bytes": "--min-free",
    "patience_s": "--patience",
    "phases": "--phase",
    "reasons": "--reason",
    "run_ids": "--run",
    "statuses": "--status",
    "tasks": "--task",
    "variants": "--variant",
}
"""The options that are not called as their parameters are."""
_ARGUMENT = re.compile(r"`([a-z][a-z_]*)=([^`]*)`")
_NAMED_VALUE = re.compile(r"\{'(\w+)': (.*)\}")


def option_name(parameter: str) -> str:
    """Return the option that sets a parameter of the library."""
    return _IRREGULAR.get(parameter) or f"--{parameter.replace('_', '-')}"


def with_options(text: str) -> str:
    """Return text with options in place of the arguments in it."""
    return _ARGUMENT.sub(_typed, text) if "=" in text else text


def _typed(argument: re.Match[str]) -> str:
    parameter, value = argument.groups()
    if (parameter, value) == ("lower_is_better", "False"):
        return "--higher-is-better"
    option = option_name(parameter)
    if value in ("", "True"):
        return option
    named = _NAMED_VALUE.fullmatch(value)
    return f"{option} {f'{named[1]}={named[2]}' if named else value.strip(chr(39))}"


def as_typed(error: LabLedgerError) -> LabLedgerError:
    """Return an error whose problems name options instead of parameters."""
    if not isinstance(error, InvalidInput):
        return error
    problems = [
        replace(problem, where=option_name(problem.where))
        if isinstance(problem.where, Parameter)
        else problem
        for problem in error.problems
    ]
    return InvalidInput(error.subject, problems, hint=error.hint)
