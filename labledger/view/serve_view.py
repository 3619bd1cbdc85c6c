"""The public function that serves the pages. The HTTP library is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from labledger.api.ledger import open_ledger
from labledger.errors import LedgerMissing
from labledger.files.lab_folder import LabFolder
from labledger.resources import require_for


@dataclass(frozen=True, slots=True)
class ViewLinks:
    """The links to the pages that `serve_view` serves. Both hold a token: who has one is let in."""

    link: str
    """For people; it can be followed at any time."""
    link_once: str
    """For a browser that a program starts: it can be followed once, within a minute, because other
    users of the machine can read the arguments of processes."""


def serve_view(
    run_id: str | None = None,
    *,
    lab_dir: str | Path | None = None,
    port: int = 0,
    read_only: bool = False,
    started: Callable[[ViewLinks], None] = lambda _: None,
) -> None:
    """Serve pages that show the runs of a lab while they run, until the process is interrupted.

    The server listens on 127.0.0.1 alone, and answers whoever has the token of its link. It reads
    the ledger and takes nothing from runs: a commit never waits for it. Before a lab's first run,
    the pages say so and wait for it, unless `run_id` names one.

    Args:
        run_id: The run whose page the links lead to; None for the list of all runs.
        lab_dir: The lab folder; by default as for a run.
        port: The port; 0 for one that is free.
        read_only: Offer and accept no changes, as for a screen that several people see.
        started: Called with the links once the server answers.

    Raises:
        RunNotFound: The ledger holds no such run.
        LedgerError: The ledger cannot be read, or there is none to hold `run_id`.
        LabLedgerError: The port is taken.
        ExtraMissing: aiohttp or Jinja2 is not installed.

    Example:
        >>> import labledger
        >>> labledger.serve_view(started=lambda links: print(links.link))
        http://127.0.0.1:41873/?token=9xIh3mFh4Sfy2tq6vU0t0tYd7jW1k5oQ
    """
    require_for("the page of runs", "view", "aiohttp", "jinja2")
    from labledger.view.server import serve

    lab = LabFolder.find(lab_dir)
    path = _path_of(run_id, lab_dir)
    serve(
        lab,
        lambda link, link_once: started(ViewLinks(link, link_once)),
        path=path,
        port=port,
        read_only=read_only,
    )


def _path_of(run_id: str | None, lab_dir: str | Path | None) -> str:
    """Return the path of the page to begin with. Raises `LedgerError` and `RunNotFound`."""
    try:
        with open_ledger(lab_dir=lab_dir) as ledger:
            return "/" if run_id is None else f"/runs/{quote(ledger.run(run_id).run_id, safe='')}"
    except LedgerMissing:
        lab = LabFolder.find(lab_dir).root
        # A lab folder that is not a folder can never hold a run.
        if run_id is not None or (lab.exists() and not lab.is_dir()):
            raise
        return "/"
