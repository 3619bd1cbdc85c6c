"""Commands for agents with profiles: the group `agents`, with show and install."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import out, out_json, say, table
from labledger.cli.help_pages import CommandLine
from labledger.text.figures import format_size

if TYPE_CHECKING:
    from labledger.results import AgentInfo

agents = CommandLine(name="agents", help="The agents that experiments can name.")


@agents.callback(invoke_without_command=True)
def list_agents(ctx: typer.Context, json: arguments.Json = False) -> None:
    """List the agents: tested version, APIs, image requirements and installed versions."""
    if ctx.invoked_subcommand is not None:
        return
    listed = labledger.list_agents()
    if json:
        out_json([agent.as_json() for agent in listed])
        return
    columns = ("agent", "version", "apis", "image needs", "license", "state")
    table(
        columns,
        [
            (
                agent.name,
                agent.version,
                ", ".join(agent.apis),
                ", ".join(agent.needs),
                agent.license,
                _state(agent),
            )
            for agent in listed
        ],
    )


def _state(agent: AgentInfo) -> str:
    if agent.problem is not None:
        return f"cannot be installed: {agent.problem}"
    installed = [f"{copy.version} ({format_size(copy.size)})" for copy in agent.installed]
    return f"installed: {', '.join(installed)}" if installed else "not installed"


@agents.command()
def show(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    json: arguments.Json = False,
) -> None:
    """Show an agent and the options that an experiment may choose."""
    agent = labledger.find_agent(name)
    if json:
        out_json(agent.as_json())
        return
    for key, value in (
        ("agent", f"{agent.name}: {agent.description}, {agent.homepage}"),
        ("license", agent.license),
        ("version", agent.version),
        ("apis", ", ".join(agent.apis)),
        ("image needs", ", ".join(agent.needs) or "nothing"),
        ("state", _state(agent)),
    ):
        out(f"{key:<12} {value}")
    out()
    rows = [
        (
            option.name,
            " | ".join(option.choices) or option.type,
            "" if option.default is None else str(option.default),
            option.description,
        )
        for option in agent.options
    ]
    table(("option", "value", "default", "what it is"), rows)


@agents.command()
def install(
    agent: Annotated[
        list[str],
        typer.Argument(metavar="NAME[@VERSION]...", help="The agents, by default as tested."),
    ],
    json: arguments.Json = False,
) -> None:
    """Install agents on this machine before a run needs them.

    Downloads them from npm and PyPI into the user's cache. A run checks the files of installed
    agents, and installs those that are missing.
    """
    installed = labledger.install_agents(agent, report=say)
    if json:
        out_json([copy.as_json() for copy in installed])
        return
    columns = ("agent", "version", "runs on", "size", "digest")
    table(
        columns,
        [
            (copy.name, copy.version, copy.runtime, format_size(copy.size), copy.tree_sha256)
            for copy in installed
        ],
    )
