"""`labledger view`: serves live pages of a lab's runs until Ctrl-C."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import out_line_at_once, say

if TYPE_CHECKING:
    from labledger.results import ViewLinks


def view(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="The run to show first; without it, the list of all runs.",
            autocompletion=arguments.complete_run_id,
        ),
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open a browser; only print the link.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="The port on 127.0.0.1; 0 for a free one.", min=0, max=65535)
    ] = 0,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Offer and accept no changes, as for a shared screen."),
    ] = False,
    lab_dir: arguments.LabDir = None,
) -> None:
    """Show the runs of a lab in a browser, while they run.

    Serves pages on 127.0.0.1 until Ctrl-C, and prints their link, which contains a secret token.
    """

    def started(links: ViewLinks) -> None:
        out_line_at_once(links.link)
        if not no_open and sys.stdout.isatty():
            _open_browser(links.link_once)
        if sys.stdout.isatty():
            say("Ctrl-C ends it")

    labledger.serve_view(run_id, lab_dir=lab_dir, port=port, read_only=read_only, started=started)


def _open_browser(link: str) -> None:
    """Open a graphical browser if there is one, without waiting for it."""
    has_screen = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not has_screen:
        return
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    threading.Thread(target=browser.open, args=(link,), daemon=True).start()
