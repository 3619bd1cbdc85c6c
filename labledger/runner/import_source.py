"""What `labledger import` is pointed at: a ledger, its lab, or a run's folder of mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from labledger.errors import InvalidInput, Problem
from labledger.export import chain_file, mirrors
from labledger.ledger import migrate, source
from labledger.ledger.source import Source
from labledger.ledger.writer import LedgerWriter
from labledger.runner.lab import FOLDER, LabFolder
from labledger.store import ArtifactStore


@dataclass(frozen=True, slots=True)
class Place:
    """Where a source lies."""

    ledger: Path | None
    """None where there are only mirrors."""
    artifacts: Path
    folder: Path
    """The run's, where there are only mirrors."""
    run_ids: tuple[str, ...] = ()
    """The run whose folder was named; none where it is a whole ledger."""


def locate(given: Path) -> Place:
    """The source that a word of the command line means. Raises `InvalidInput` where it is none.

    A run's folder means that run of the ledger two folders above; where there is none, or it was
    emptied, its mirrors.
    """
    if given.is_file():
        return Place(given, given.parent / "artifacts", given.parent)
    for lab in (given, given / FOLDER):
        if (lab / "ledger.sqlite").exists():
            return Place(lab / "ledger.sqlite", lab / "artifacts", given)
    lab = given.absolute().parent.parent
    if (given / "resolved.json").is_file() and _has_content(lab / "ledger.sqlite"):
        return Place(lab / "ledger.sqlite", lab / "artifacts", given, (given.absolute().name,))
    if (given / chain_file.PATH).exists():
        return Place(None, _artifacts_beside(given), given)
    if any((given / path).exists() for path in mirrors.PATHS.values()):
        message = f"there are mirrors in it, but no {chain_file.PATH} to verify them by"
        hint = "`labledger export RUN_ID --out DIR` writes all that an import needs"
        raise InvalidInput("the import", [Problem(str(given), message, hint=hint)])
    expected = "a ledger file, a lab folder, or a run's folder"
    raise InvalidInput("the import", [Problem(str(given), f"found none of these: {expected}")])


def _has_content(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


@contextmanager
def open_place(lab: LabFolder, place: Place) -> Iterator[Source]:
    """Read the source, which stays as it is; mirrors are made into a ledger of their own first.

    Raises `InvalidInput` for the lab's own ledger, and `LedgerError` for what cannot be read.
    """
    with TemporaryDirectory(prefix="labledger-import-") as name:
        scratch = Path(name)
        if place.ledger is None:
            ledger = scratch / "mirrors.sqlite"
            _rebuild(place.folder, ledger)
            with source.open_source_ledger(ledger, place.artifacts, scratch) as made:
                yield replace(made, path=place.folder, has_artifacts=False)
            return
        if lab.ledger.exists() and place.ledger.samefile(lab.ledger):
            message = "it is this lab's own ledger"
            hint = "choose the lab to import into with --lab-dir"
            raise InvalidInput("the import", [Problem(str(place.ledger), message, hint=hint)])
        with source.open_source_ledger(place.ledger, place.artifacts, scratch) as opened:
            yield opened


def _artifacts_beside(folder: Path) -> Path:
    """Where large artifacts lie that a folder of mirrors refers to: in it, or in its lab."""
    inside = folder / "artifacts"
    runs = folder.absolute().parent
    return runs.parent / "artifacts" if runs.name == "runs" and not inside.exists() else inside


def _rebuild(folder: Path, ledger: Path) -> None:
    files = {kind: folder / path for kind, path in mirrors.PATHS.items()}
    migrate.upgrade(ledger)
    with LedgerWriter.open(ledger, ArtifactStore(ledger.parent / "artifacts")) as writer:
        writer.rebuild_run(folder / chain_file.PATH, files)
