"""Listings of a workspace with arbitrary content."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from labledger.files import workspace_listing as workspace
from labledger.files.workspace_listing import Entry, list_folder, list_seed
from labledger.files.workspace_seed import InlineSeed
from labledger.records.canonical_json import sha256_hex


def test_a_seeded_folder_is_its_seed(tmp_path: Path) -> None:
    """A newly filled workspace lists exactly like its seed."""
    seed = InlineSeed({"a.txt": "ä\r\n", "sub/deep/b": "", "node_modules/x.js": "x"})
    seed.fill(tmp_path)
    before, after = list_seed(seed), list_folder(tmp_path)
    assert before.entries == after.entries
    assert before.entries == {
        "a.txt": Entry("file", 4, sha256_hex("ä\r\n".encode())),
        "sub/deep/b": Entry("file", 0, sha256_hex(b"")),
    }
    assert after.left_out == ["node_modules"]


def test_kinds_of_entries(tmp_path: Path) -> None:
    """Files, links and other entries are distinguished, without following or waiting."""
    (tmp_path / "run").write_text("x")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "one").hardlink_to(tmp_path / "run")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "venv").write_text("a file of that name is a file")
    listing = list_folder(tmp_path)
    assert {
        n: (e.kind, e.sha256 is not None, e.executable) for n, e in listing.entries.items()
    } == {
        "run": ("file", False, True),
        "one": ("file", False, True),
        "link": ("link", True, False),
        "broken": ("link", True, False),
        "pipe": ("other", False, False),
        "venv": ("file", True, False),
    }
    assert listing.as_json()["left_out"] == [".git"]


def test_change_of_what_a_link_points_to(tmp_path: Path) -> None:
    """Two links of one length to two places are two entries."""
    (tmp_path / "link").symlink_to("aa//b")
    first = list_folder(tmp_path).entries
    assert first["link"] == Entry("link", 5, sha256_hex(b"aa//b"))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("ab//b")
    assert list_folder(tmp_path).entries != first


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A name that is not UTF-8 is listed in a form that can be written down."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).write_text("x")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/folder\xfe")).mkdir()
    listing = list_folder(tmp_path)
    assert [(n, e.size) for n, e in listing.entries.items()] == [("bad\ufffd", 1)]
    assert listing.left_out == ["folder\ufffd"]


def test_folders_of_any_depth(tmp_path: Path) -> None:
    """A folder far deeper than Python's stack is listed as far as a path can be."""
    here = os.open(tmp_path, os.O_RDONLY)
    depth = sys.getrecursionlimit() * 3
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (tmp_path / "z.txt").write_text("x")
    listing = list_folder(tmp_path)
    assert "z.txt" in listing.entries
    assert len(listing.left_out) == 1
    os.system(f"rm -rf '{tmp_path}/d'")


def test_listings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files, folders or names end a listing, which says so."""
    for i in range(30):
        (tmp_path / f"folder{i}").mkdir()
        (tmp_path / f"file{i}").write_text("x")
    whole = list_folder(tmp_path)
    assert (len(whole.entries), whole.truncated) == (30, False)
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 20)
    listed = list_folder(tmp_path)
    assert (len(listed.entries) <= 20, listed.truncated) == (True, True)
    listing = workspace.Listing(_characters_left=100)
    for i in range(100):
        listing.add(f"name{i:06d}", Entry("file", 0))
        listing.leave_out(f"name{i:06d}")
    assert listing.truncated
    assert len(listing.entries) + len(listing.left_out) == 10


def test_hashing_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond the byte budget are listed without a digest."""
    for name in "abcd":
        (tmp_path / name).write_bytes(bytes(1000))
    monkeypatch.setattr(workspace, "HASHING_BUDGET", 2500)
    hashed = {name: e.sha256 is not None for name, e in list_folder(tmp_path).entries.items()}
    assert hashed == {"a": True, "b": True, "c": False, "d": False}
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    monkeypatch.setattr(workspace, "HASHING_BUDGET", 1 << 50)
    assert list_folder(tmp_path).entries["sparse"] == Entry("file", 1 << 40)


def test_more_folders_than_can_be_looked_into(tmp_path: Path) -> None:
    """Queued folders, full or empty, count in the memory for names."""
    for name in "abcdefghij":
        (tmp_path / "deep" / (name * 20)).mkdir(parents=True)
    listing = workspace.Listing(_characters_left=100)
    assert list(workspace.walk(tmp_path, listing)) == []
    assert listing.truncated
    assert listing.as_json()["left_out"] == []
