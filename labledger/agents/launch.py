"""How an agent with a profile is started in a container.

Its folder is mounted read-only at `folder_of(NAME)`. The command is the folder's `launch`, which
needs only a POSIX shell and `mkdir` from the image. It reads the variables below, writes the
agent's settings to a temporary folder, and becomes the agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from labledger.agents.profiles import STDOUT, AgentProfile, OptionType, ProfileOption, Value
from labledger.errors import InvalidInput, Problem
from labledger.records.model_calls import Api
from labledger.text.words import near_names

MOUNT = "/opt/labledger/agents"
"""The folder of all agents in a container."""
LOGS_FOLDER = "/agentlab/out/agent"
"""The folder that `launch` creates for the agent's own logs."""

MODEL = "AGENTLAB_MODEL"
"""The variable with the model's name, as its provider spells it."""
API = "AGENTLAB_MODEL_API"
"""The variable with the API that the agent must speak, a value of `Api`."""
LOGS = "AGENTLAB_AGENT_LOGS"
"""The variable with the folder for the agent's own logs."""
URL = "AGENTLAB_MODEL_URL"
"""The variable with the gateway's address, such as ``http://127.0.0.1:PORT/PROVIDER``. `resolve`
does not set it."""
TOKEN = "AGENTLAB_MODEL_TOKEN"  # noqa: S105
"""The variable with the attempt's token, a secret. `resolve` does not set it."""
INSTRUCTION = "AGENTLAB_INSTRUCTION_PATH"
"""The variable with the path of the instruction, a file in UTF-8. `resolve` does not set it."""

_MODEL_NAME = re.compile(r"[A-Za-z0-9][^\s\"'`\\$]{0,199}")
"""Without spaces and quotes, because `launch` writes it into settings."""


@dataclass(frozen=True, slots=True)
class AgentLaunch:
    """The command and the environment that start an agent in a container."""

    command: tuple[str, ...]
    """`launch` in the mounted folder, and the arguments of the options."""
    env: Mapping[str, str]
    """The variables, except `URL`, `TOKEN` and `INSTRUCTION`."""
    logs: Mapping[str, str]
    """The agent's own logs: by name, the path in the container, or `stdout`."""
    options: Mapping[str, Value]
    """The values of the options, with defaults."""


def folder_of(name: str) -> str:
    """Return the path of a profile's folder in a container."""
    return f"{MOUNT}/{name}"


def resolve(
    profile: AgentProfile,
    model: str,
    options: Mapping[str, object] | None = None,
    *,
    api: Api | None = None,
) -> AgentLaunch:
    """Return the command and environment that start an agent with a model and options.

    `model` is the provider's spelling. Values of options may be text. `api` is the API of the
    provider; None means the profile's first one. Raises `InvalidInput` with each unknown option and
    each unusable value, and for an API that the agent does not speak.
    """
    given = options or {}
    problems = [
        Problem(profile.name, message, field=name)
        for name, value in given.items()
        if (message := _problem_with(profile, name, value)) is not None
    ]
    if not _MODEL_NAME.fullmatch(model):
        message = f"found {model!r}; expected a model's name, without spaces and quotes"
        problems.append(Problem(profile.name, message, field="model"))
    if api is not None and api not in profile.apis:
        message = f"{profile.name} does not speak {api}; it speaks {', '.join(profile.apis)}"
        problems.append(Problem(profile.name, message))
    if problems:
        raise InvalidInput(f"the agent {profile.name}", problems)
    spoken = api or profile.apis[0]
    arguments: list[str] = []
    env = {MODEL: model, API: spoken.value, LOGS: LOGS_FOLDER}
    values: dict[str, Value] = {}
    for name, option in profile.options.items():
        value = option.type.read(given[name]) if name in given else option.default
        if value is not None:
            values[name] = value
            arguments += _arguments(option, value)
            if option.variable is not None:
                env[option.variable] = _text(value)
    return AgentLaunch(
        command=(f"{folder_of(profile.name)}/launch", *arguments),
        env=env,
        logs={
            name: STDOUT if file == STDOUT else f"{LOGS_FOLDER}/{file}"
            for name, file in profile.logs.items()
        },
        options=values,
    )


def _problem_with(profile: AgentProfile, name: str, value: object) -> str | None:
    if (option := profile.options.get(name)) is not None:
        return option.problem_with(value)
    near = near_names(name, profile.options)
    known = ", ".join(profile.options) or "none"
    return f"unknown option; {f'did you mean {near[0]!r}?' if near else f'known options: {known}'}"


def _arguments(option: ProfileOption, value: Value) -> list[str]:
    if option.type is OptionType.BOOLEAN and value is False:
        return []
    return [argument.replace("{value}", _text(value)) for argument in option.arguments]


def _text(value: Value) -> str:
    """Return a value as text for a variable or an argument. A boolean is 1 or empty."""
    if isinstance(value, bool):
        return "1" if value else ""
    return str(value)
