"""How an agent with a profile is started in a container.

A profile's folder is mounted read-only at `folder_of(NAME)`, and the command is its `launch`, a
program that needs nothing of the image but a POSIX shell. It reads the variables below, writes the
agent's settings below a temporary HOME, and becomes the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labledger.agents.profiles import AgentProfile
from labledger.records.model_calls import Api

MOUNT = "/opt/labledger/agents"
"""Where containers have the folders of agents."""
LOGS = "/agentlab/out/agent"
"""The folder that `launch` makes for the agent's own logs."""

MODEL = "AGENTLAB_MODEL"
"""The variable with the model's name, as its provider spells it."""
API = "AGENTLAB_MODEL_API"
"""The variable with the API that the agent must speak, a value of `Api`."""
URL = "AGENTLAB_MODEL_URL"
"""The variable with the gateway's address, such as ``http://127.0.0.1:PORT/PROVIDER``. `resolve`
does not set it."""
TOKEN = "AGENTLAB_MODEL_TOKEN"  # noqa: S105
"""The variable with the attempt's token, a secret. `resolve` does not set it."""
INSTRUCTION = "AGENTLAB_INSTRUCTION_PATH"
"""The variable with the path of the instruction, a file in UTF-8. `resolve` does not set it."""


@dataclass(frozen=True, slots=True)
class AgentLaunch:
    """What starts an agent in a container."""

    command: tuple[str, ...]
    """`launch` of the mounted folder, and the arguments that the options became."""
    env: Mapping[str, str]
    """All but `URL`, `TOKEN` and `INSTRUCTION`."""
    api: Api
    logs: Mapping[str, str]
    """The agent's own logs: by a name of the profile's, the path in the container."""


def folder_of(name: str) -> str:
    """Return the path of a profile's folder in a container."""
    return f"{MOUNT}/{name}"


def resolve(
    profile: AgentProfile,
    model: str,
    options: Mapping[str, Any] | None = None,
    *,
    api: Api | None = None,
) -> AgentLaunch:
    """Return what starts an agent with a model, as its provider spells it, and options.

    `api` is the one that the model's provider speaks; None for the first of the profile's. Raises
    `InvalidInput` with each option that is unknown or has an unusable value, and for an API that
    the agent does not speak.
    """
    raise NotImplementedError
