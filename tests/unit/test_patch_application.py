"""Patches of labledger, applied again, give the same bytes or nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from labledger.files import patches, workspace_listing
from labledger.files.patches import PatchMismatch, apply_piece, pieces_by_name
from labledger.files.workspace_seed import InlineSeed

LINES = ["", "a", "b", "a b", "-", "+", "@@ -1 +1 @@", "--- a/x", "# x", "\\ No newline", "\r"]
LINES += ["\\ No newline at end of file", "é\u2028\f\x0b", "diff --git a/x b/x", "Binary files "]
NAMES = ["x", 'quo"ted', "with space", "line\nbreak", "sub/deep/ü", "\x7fdel", "# x", "a b/a b"]


def random_text(chance: random.Random) -> str:
    return "\n".join(chance.choices(LINES, k=chance.randrange(12)))


def edited(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(lines) + 1)
        lines[at : at + chance.randrange(3)] = chance.choices(LINES, k=chance.randrange(3))
    return "\n".join(lines)


@pytest.mark.parametrize("effort", [patches.MAX_FILE_PAIRS, 0], ids=("compared", "in one piece"))
def test_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effort: int) -> None:
    """The patch between any two texts leads from one to the other."""
    monkeypatch.setattr(patches, "MAX_FILE_PAIRS", effort)
    chance = random.Random(7)
    for turn in range(300):
        before = {name: random_text(chance) for name in NAMES if chance.random() < 0.7}
        after = {
            name: edited(before[name], chance) if name in before else random_text(chance)
            for name in NAMES
            if chance.random() < 0.8
        }
        folder = tmp_path / f"{turn}"
        folder.mkdir()
        InlineSeed(after).fill(folder)
        seed = InlineSeed(before)
        listings = workspace_listing.list_seed(seed), workspace_listing.list_folder(folder)
        patch = patches.patch(seed, folder, *listings)
        assert patch.unpatchable == []
        pieces = pieces_by_name(patch.content, after)
        for name, text in after.items():
            old = before.get(name, "").encode()
            assert apply_piece(pieces.get(name, []), old) == text.encode(), patch.content.decode()
        changed = {name for name in after if before.get(name) != after[name]}
        assert pieces.keys() == changed


def test_other_files(tmp_path: Path) -> None:
    """A patch lists files that it does not carry, unless their content is unchanged."""
    before = {"same": "x" * 300_000, "cut": "1\n", "large": "y" * 300_000, "gone": "\0"}
    after = before | {"large": "z" * 300_000, "bin": "\0", "new": "n"}
    del after["gone"]
    InlineSeed(after).fill(tmp_path)
    (tmp_path / "same").chmod(0o755)
    (tmp_path / "link").symlink_to("new")
    listings = (
        workspace_listing.list_seed(InlineSeed(before)),
        workspace_listing.list_folder(tmp_path),
    )
    patch = patches.patch(InlineSeed(before), tmp_path, *listings)
    assert patch.unpatchable == ["bin", "large", "link"]
    assert pieces_by_name(patch.content, after).keys() == {"new"}


@pytest.mark.parametrize(
    "piece",
    [
        b"@@ -1 +1 @@\n-b\n+c\n",
        b"@@ -3 +3 @@\n-a\n+c\n",
        b"@@ -1,2 +1 @@\n-a\n-a\n-a\n",
        b"@@ -1 +1 @@\n?a\n",
        b"@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+c\n",
        b"@@ -0,0 +1 @@\n+x\n@@ -2 +2 @@\n-a\n@@ -1 +1 @@\n-a\n",
        b"@@ -999999999 +1 @@\n-a\n",
    ],
)
def test_misfits(piece: bytes) -> None:
    """A patch for another file is not applied."""
    with pytest.raises(PatchMismatch):
        apply_piece(piece.splitlines(keepends=True), b"a\na\n")


def test_names_in_a_patch_do_not_count() -> None:
    """Only files requested by name are found, whatever else a patch names."""
    piece = "--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x\n"
    names = ("../out", "/etc/passwd", "fine")
    patch = "".join(f"diff --git a/{n} b/{n}\n{piece.format(n)}" for n in names).encode()
    pieces = pieces_by_name(patch, ["fine", "other"])
    assert pieces.keys() == {"fine"}
    assert apply_piece(pieces["fine"], b"") == b"x\n"
