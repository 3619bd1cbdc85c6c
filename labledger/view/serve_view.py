"""The public function that serves the pages. It imports the HTTP library when it is called."""

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
    """The links to the pages of `serve_view`. Both contain a token, which grants access."""

    link: str
    """The link for people, valid while the server runs."""
    link_once: str
    """The link for a browser that a program starts. It works once, within a minute, because other
    users of the machine can read the arguments of processes."""


def serve_view(
    run_id: str | None = None,
    *,
    lab_dir: str | Path | None = None,
    port: int = 0,
    read_only: bool = False,
    started: Callable[[ViewLinks], None] = lambda _: None,
) -> None:
    """Serve live pages of a lab's runs until the process is interrupted.

    The server listens only on 127.0.0.1, and answers only requests with the token of its link. It
    only reads the ledger, and no commit waits for it. In a lab without runs, the pages wait for the
    first run.

    Args:
        run_id: The run whose page the links lead to; None for the list of all runs.
        lab_dir: The lab folder; by default as for a run.
        port: The port; 0 for a free one.
        read_only: Offer and accept no changes, as for a shared screen.
        started: Called with the links once the server answers.

    Raises:
        RunNotFound: The ledger has no run `run_id`.
        LedgerError: The ledger cannot be read, or `run_id` is given and there is no ledger.
        LabLedgerError: The port is in use.
        ExtraMissing: aiohttp or Jinja2 is not installed.

    Example:
        >>> import labledger
        >>> labledger.serve_view(started=lambda links: print(links.link))
        http://127.0.0.1:41873/?token=9xIh3mFh4Sfy2tq6vU0t0tYd7jW1k5oQ
    """
    require_for("the page of runs", "view", "aiohttp", "jinja2")
    # Imported late: it needs the libraries of the extra `view`.
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
    """Return the path of the first page. Raises `LedgerError` and `RunNotFound`."""
    try:
        with open_ledger(lab_dir=lab_dir) as ledger:
            return "/" if run_id is None else f"/runs/{quote(ledger.run(run_id).run_id, safe='')}"
    except LedgerMissing:
        lab = LabFolder.find(lab_dir).root
        # A lab folder that is not a folder can never hold a run.
        if run_id is not None or (lab.exists() and not lab.is_dir()):
            raise
        return "/"
