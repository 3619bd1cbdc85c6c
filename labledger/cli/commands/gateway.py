"""Commands of the model gateway: the group gateway with mock.

`labledger gateway mock` runs until it is stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import labledger
from labledger.cli.console import say
from labledger.cli.help_pages import CommandLine

gateway = CommandLine(help="The model gateway.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    gateway.command()(mock)
    app.add_typer(gateway, name="gateway")


def mock(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="What it answers: a YAML or JSON file.")
    ],
    port: Annotated[int, typer.Option(help="The port; 0 for a free one.", min=0, max=65535)] = 0,
) -> None:
    """Serve a model provider that answers by a script, until it is stopped.

    It speaks the APIs of Anthropic, OpenAI and Gemini on 127.0.0.1, so that agents can be tried
    without a key.
    """
    labledger.serve_scripted_provider(script, port=port, report=say)
