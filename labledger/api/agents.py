"""The library of agent profiles: list, show and install agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.agents.agent_trees import InstalledAgent
from labledger.records.json_codec import JsonForm

if TYPE_CHECKING:
    from labledger.agents.profiles import AgentProfile


@dataclass(frozen=True, slots=True)
class AgentOption(JsonForm):
    """An option of an agent that an experiment may set."""

    name: str
    type: str
    """`text`, `integer`, `number` or `boolean`."""
    description: str
    default: str | int | float | bool | None
    """None if the agent decides."""
    choices: tuple[str, ...]
    """The allowed values; empty if any is allowed."""


@dataclass(frozen=True, slots=True)
class AgentInfo(JsonForm):
    """An agent that an experiment can name, and whether it is installed on this machine."""

    name: str
    description: str
    license: str
    homepage: str
    version: str
    """The tested version, which is the default."""
    apis: tuple[str, ...]
    """The model APIs that it speaks, the usual one first."""
    needs: tuple[str, ...]
    """Programs that an image must have."""
    options: tuple[AgentOption, ...]
    installed: tuple[InstalledAgent, ...]
    """Its installed versions. Only a run checks their files."""
    problem: str | None
    """Why it cannot be installed on this machine; None if no reason is known."""

    @property
    def is_ready(self) -> bool:
        """Whether the tested version is installed."""
        return any(agent.version == self.version for agent in self.installed)


def list_agents(*, cache: str | Path | None = None) -> list[AgentInfo]:
    """Return all agents in the order of their names, including agents from other packages.

    Args:
        cache: The folder of installed agents; None for the user's cache.

    Raises:
        InvalidInput: Profiles have problems; all are named.

    Example:
        >>> import labledger
        >>> [agent.name for agent in labledger.list_agents() if agent.is_ready]
        ['claude-code', 'codex']
    """
    from labledger.agents.profiles import find_profiles

    folder = None if cache is None else Path(cache)
    return [_info(profile, folder) for profile in find_profiles().values()]


def find_agent(name: str, *, cache: str | Path | None = None) -> AgentInfo:
    """Return the agent with a name.

    Args:
        name: Its name, or the path of a folder with a profile, such as ``./my-agent``.
        cache: The folder of installed agents; None for the user's cache.

    Raises:
        InvalidInput: There is no such agent, or its profile has problems.

    Example:
        >>> import labledger
        >>> [option.name for option in labledger.find_agent("mini-swe-agent").options]
        ['cost_limit', 'step_limit', 'command_timeout', 'temperature', 'effort']
    """
    return _info(_profile_named(name), None if cache is None else Path(cache))


def install_agents(
    agents: Sequence[str],
    *,
    cache: str | Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[InstalledAgent]:
    """Install agents, several at a time, and return them. A run also installs missing agents.

    Checks agents that are already installed, and rebuilds them if their files were changed.

    Args:
        agents: ``NAME@VERSION`` for each, or only a name for the tested version. A name may be the
            path of a folder with a profile, such as ``./my-agent``.
        cache: The folder of installed agents; None for the user's cache.
        report: Called with a line, from any thread, whenever an installation begins or ends.

    Raises:
        InvalidInput: There is no such agent, its version is not pinned, or it could not be
            installed; all problems are named.

    Example:
        >>> import labledger
        >>> [codex] = labledger.install_agents(["codex@0.169.0"], report=print)
        codex@0.169.0: installing it from npm
        codex@0.169.0: installed, 407 MiB in 15.8 s
    """
    from labledger.agents.installation import AgentTarget, install

    targets = []
    for agent_version in agents:
        name, _, version = agent_version.partition("@")
        profile = _profile_named(name)
        targets.append(AgentTarget(profile, version or profile.version))
    return install(targets, None if cache is None else Path(cache), report=report)


def _profile_named(name: str) -> AgentProfile:
    """Return the profile with a name, or the profile in a folder."""
    from labledger.agents.own_folder import read_folder
    from labledger.agents.profiles import is_folder, load_profile

    return read_folder(Path(name).absolute()) if is_folder(name) else load_profile(name)


def _info(profile: AgentProfile, cache: Path | None) -> AgentInfo:
    from labledger.agents.installation import installed_versions, unsupported

    return AgentInfo(
        name=profile.name,
        description=profile.description,
        license=profile.license,
        homepage=profile.homepage,
        version=profile.version,
        apis=tuple(api.value for api in profile.apis),
        needs=profile.needs,
        options=tuple(
            AgentOption(name, option.type.value, option.description, option.default, option.choices)
            for name, option in profile.options.items()
        ),
        installed=tuple(installed_versions(profile, cache)),
        problem=unsupported(profile),
    )
