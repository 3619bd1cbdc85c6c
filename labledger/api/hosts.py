"""Decisions about the hosts of a run: declare one lost.

Each function takes the lab folder as `lab_dir`; None means `LABLEDGER_DIR` or the nearest `.lab`
folder upwards. A run may be in progress meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from labledger.errors import InvalidInput, Problem
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.lab_folder import LabFolder

_MAX_REASON = 1_000


def declare_host_lost(
    run_id: str, host: str, because: str, *, lab_dir: str | Path | None = None
) -> None:
    """Decide that a host of a cluster will not come back to a run. It cannot be taken back.

    Its open attempts become an `infra_error` with the reason `host_lost`, at once if a coordinator
    runs the run, else when it is resumed, and are tried again on other hosts as the experiment's
    `design.retry` says. An agent that ran there may so run a second time. If the host does come
    back, its results are refused.

    Args:
        run_id: The run.
        host: The host's name, as `labledger status` shows it: ``NAME/ID``.
        because: Why, in at most 1,000 characters. It is stored, and part of the attempts' message.
        lab_dir: The lab folder.

    Raises:
        RunNotFound: The ledger holds no such run.
        InvalidInput: The run has dispatched nothing to that host, or the reason is empty or too
            long.

    Example:
        >>> import labledger
        >>> labledger.declare_host_lost("demo", "node7/3f2a91c0", "its disk is dead")
    """
    from labledger.ledger.writer import LedgerWriter

    if not because.strip() or len(because) > _MAX_REASON:
        message = f"found {len(because):,} characters; expected a text of at most {_MAX_REASON:,}"
        raise InvalidInput("the reason", [Problem("--because", message)])
    lab = LabFolder.find(lab_dir)
    with LedgerWriter.open(lab.ledger, ArtifactStore(lab.artifacts)) as writer:
        writer.declare_host_lost(run_id, host, because)
