"""Folders that a listing leaves out are read if they are small."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labledger.files import workspace_listing
from labledger.files.workspace_listing import (
    digest,
    inspect_unlisted_folders,
    list_folder,
    seeded_unlisted_folders,
)
from labledger.files.workspace_seed import InlineSeed

FILES = {".git/HEAD": "main", ".git/refs/a": "a", "sub/.git/b": "b", "x/.cache/c": "c", "y": "y"}


def looked_into(folder: Path) -> dict[str, workspace_listing.FolderContents]:
    return inspect_unlisted_folders(folder, list_folder(folder))


def test_a_seeded_folder_is_its_seeds(tmp_path: Path) -> None:
    """A newly filled folder has exactly the seed's files."""
    seed = InlineSeed(FILES)
    seed.fill(tmp_path)
    paths = looked_into(tmp_path)
    assert paths == seeded_unlisted_folders(seed, paths)
    assert paths.keys() == {".git", "sub/.git"}
    first = {name: digest(inside) for name, inside in paths.items()}
    (tmp_path / ".git" / "refs" / "a").chmod(0o755)
    (tmp_path / "sub" / ".git" / "hollow").mkdir()
    second = {name: digest(inside) for name, inside in looked_into(tmp_path).items()}
    assert first[".git"] != second[".git"]
    assert first["sub/.git"] == second["sub/.git"]


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES"])
def test_all_folders_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Folders beyond the limits of number and size are not read, and smaller ones are."""
    InlineSeed(FILES).fill(tmp_path)
    monkeypatch.setattr(workspace_listing, limit, {"MAX_FILES": 3, "MAX_BYTES": 6}[limit])
    assert looked_into(tmp_path).keys() == {".git", "sub/.git"}
    for name in ("more", "most"):
        (tmp_path / ".git" / name).write_text("x")
    assert looked_into(tmp_path).keys() == {"sub/.git"}


@pytest.mark.parametrize("thing", ["pipe", "two names", "no text"])
def test_what_cannot_be_kept(tmp_path: Path, thing: str) -> None:
    """A folder with anything but files with a single name is unknown."""
    InlineSeed(FILES).fill(tmp_path)
    match thing:
        case "pipe":
            os.mkfifo(tmp_path / ".git" / "pipe")
        case "two names":
            (tmp_path / ".git" / "other").hardlink_to(tmp_path / ".git" / "HEAD")
        case _:
            Path(os.fsdecode(os.fsencode(tmp_path) + b"/.git/bad\xff")).write_text("x")
    assert looked_into(tmp_path).keys() == {"sub/.git"}
