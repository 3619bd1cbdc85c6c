"""Commands that annotate runs: note and tag."""

from __future__ import annotations

from typing import Annotated

import typer

from labledger.cli.options import arguments
from labledger.cli.output.console import out, say


def register(app: typer.Typer) -> None:
    app.command()(note)
    # A word such as -draft or -high is a tag to remove, and its letters are no options.
    settings = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
    app.command(context_settings=settings)(tag)


def note(
    run_id: arguments.RunId,
    text: Annotated[str, typer.Argument(help="What is to be remembered of the run.")],
    lab_dir: arguments.LabDir = None,
) -> None:
    """Write a note on a run. `labledger status` shows its notes, the view `notes` all of them."""
    from labledger.api import add_note

    add_note(run_id, text, lab_dir=lab_dir)
    say(f"noted; `labledger status {run_id}` shows the notes of the run")


def tag(
    run_id: arguments.RunId,
    tags: Annotated[
        list[str] | None, typer.Argument(help="+NAME adds a tag, -NAME removes one.")
    ] = None,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Add tags to a run (+NAME) and remove others (-NAME), and print those that it has."""
    from labledger.api import InvalidInput, Problem, change_tags

    words = tags or []
    unclear = [
        Problem("tag", f"found {word!r}; expected +{word} to add it or -{word} to remove it")
        for word in words
        if word[:1] not in {"+", "-"}
    ]
    if unclear:
        raise InvalidInput("the tags", unclear)
    added = [word[1:] for word in words if word[0] == "+"]
    removed = [word[1:] for word in words if word[0] == "-"]
    for name in change_tags(run_id, added, removed, lab_dir=lab_dir):
        out(name)
