"""The patch of a workspace, applied with `git apply` and with `patch`."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from labledger.files import patches, workspace_listing
from labledger.files.workspace_seed import InlineSeed

Files = dict[str, str]


def fill(folder: Path, files: Files) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(0o644)


def patch_between(folder: Path, before: Files) -> str:
    seed = InlineSeed(before)
    listings = workspace_listing.list_seed(seed), workspace_listing.list_folder(folder)
    return patches.patch(seed, folder, *listings).content.decode()


def apply(patch: str, command: list[str], before: Files, folder: Path) -> Files:
    """Return the files that a program makes by applying a patch to the old files."""
    folder.mkdir()
    fill(folder, before)
    if patch:
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
        done = subprocess.run(
            command, cwd=folder, input=patch.encode(), capture_output=True, env=environment
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode() + patch
    return {
        str(path.relative_to(folder)): path.read_bytes().decode()
        for path in folder.rglob("*")
        if path.is_file()
    }


GIT = ["git", "apply", "--whitespace=nowarn", "-"]
PATCH = ["patch", "-p1", "--quiet", "--binary", "--batch", "--no-backup-if-mismatch"]


def both(patch: str, before: Files, after: Files, tmp_path: Path) -> None:
    """Check that both programs turn the old files into the new ones."""
    for number, command in enumerate((GIT, PATCH)):
        assert apply(patch, command, before, tmp_path / f"{number}") == after, patch


LINES = [
    "",
    "a",
    "b",
    "a b",
    "-",
    "+",
    "@@ -1 +1 @@",
    "--- a/x",
    "\\ No newline",
    "\r",
    "é\u2028\f",
    "#",
]
NAMES = [
    "plain.txt",
    "sub/deep/name.txt",
    "with space.txt",
    'q"uote',
    "back\\slash",
    "ünicode",
    "-dash",
]


def random_text(chance: random.Random) -> str:
    lines = [chance.choice(LINES) for _ in range(chance.randrange(14))]
    return "\n".join(lines) + chance.choice(["", "\n"])


def edited(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(lines) + 1)
        match chance.randrange(3):
            case 0:
                lines.insert(at, chance.choice(LINES))
            case 1:
                del lines[at : at + 2]
            case _:
                lines[at : at + 1] = [chance.choice(LINES)]
    return "\n".join(lines)


@pytest.mark.parametrize("effort", [patches.MAX_FILE_PAIRS, 0], ids=("compared", "in one piece"))
def test_patches_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effort: int) -> None:
    """Whatever was edited, added and removed, the patch leads from before to after."""
    monkeypatch.setattr(patches, "MAX_FILE_PAIRS", effort)
    chance = random.Random(11)
    for turn in range(40):
        before = {name: random_text(chance) for name in NAMES if chance.random() < 0.6}
        after = dict(before)
        for name in NAMES:
            if name in before and chance.random() < 0.6:
                after[name] = edited(before[name], chance)
            elif name in before and chance.random() < 0.3:
                del after[name]
            elif name not in before and chance.random() < 0.4:
                after[name] = random_text(chance)
        folder = tmp_path / f"{turn}"
        folder.mkdir()
        fill(folder / "workspace", after)
        (folder / "workspace").mkdir(exist_ok=True)
        patch = patch_between(folder / "workspace", before)
        assert bool(patch) == (before != after)
        # An empty file that is made or removed has no lines, so only git sees it.
        if any(
            "" in (before.get(n), after.get(n)) and before.get(n) != after.get(n) for n in NAMES
        ):
            assert apply(patch, GIT, before, folder / "git") == after, patch
        else:
            both(patch, before, after, folder)


def test_rights_are_part_of_the_patch(tmp_path: Path) -> None:
    """A file that became executable, with or without another change, is so after the patch."""
    before = {"run": "x\n", "edited": "x\n", "same": "x\n"}
    here = tmp_path / "workspace"
    fill(here, before | {"edited": "y\n", "new": "z\n"})
    for name in ("run", "edited", "new"):
        (here / name).chmod(0o755)
    patch = patch_between(here, before)
    assert "diff --git a/run b/run\nold mode 100644\nnew mode 100755\n" in patch
    apply(patch, GIT, before, tmp_path / "applied")
    rights = {p.name: bool(p.stat().st_mode & 0o100) for p in (tmp_path / "applied").iterdir()}
    assert rights == {"run": True, "edited": True, "new": True, "same": False}


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    """Binary, large and other files are listed in the patch, and its texts still apply."""
    before = {"a.txt": "a\n", "b.bin": "b\n", "c.txt": "c\n", "large": "l" * 300_000, "link": "x\n"}
    here = tmp_path / "workspace"
    fill(here, {"a.txt": "A\n", "c.txt": "C\n", "large": "L", "new.txt": "n\n"})
    (here / "b.bin").write_bytes(b"\0binary")
    (here / "latin.txt").write_bytes(b"gr\xfcn\n")
    (here / "huge").write_bytes(b"x\n" * 200_000)
    (here / "link").symlink_to("a.txt")
    os.mkfifo(here / "line\nbreak")
    patch = patch_between(here, before)
    for line in (
        "Binary files a/b.bin and b/b.bin differ",
        "Binary files a/latin.txt and b/latin.txt differ",
        "# huge: file of 400,000 bytes, not compared",
        "# large: file of 300,000 bytes, not compared",
        "# link: link of 5 bytes, not compared",
        '# "line\\nbreak": other of 0 bytes, not compared',
    ):
        assert f"\n{line}\n" in f"\n{patch}"
    changed = {"a.txt": "A\n", "c.txt": "C\n", "new.txt": "n\n"}
    both(patch, before, before | changed, tmp_path)


def test_name_that_would_forge_a_patch(tmp_path: Path) -> None:
    """A file's name cannot add lines to the patch."""
    name = "x\n--- a/victim\n+++ b/victim\n@@ -1 +1 @@\n-a\n+b\n"
    here = tmp_path / "workspace"
    here.mkdir()
    (here / name.replace("/", "|")).write_text("content\n")
    patch = patch_between(here, {})
    assert not any(line.startswith(("--- a|", "+++ b|", "-a")) for line in patch.splitlines())
    after = {name.replace("/", "|"): "content\n"}
    assert apply(patch, GIT, {}, tmp_path / "applied") == after


def test_patch_is_capped(tmp_path: Path) -> None:
    """A patch ends between two files, and says so, before it becomes too large."""
    here = tmp_path / "workspace"
    fill(here, {f"{i:02d}.txt": f"{i}\n" * 80_000 for i in range(10)})
    patch = patch_between(here, {})
    assert len(patch) <= patches.PATCH_CAP + 100
    assert patch.endswith("# the patch ends here: more than 1,048,576 bytes\n")
    applied = apply(patch, GIT, {}, tmp_path / "applied")
    assert sorted(applied) == [f"{i:02d}.txt" for i in range(len(applied))]
    assert len(applied) >= 3


def test_hard_comparisons_end(tmp_path: Path) -> None:
    """Files that are hard to compare are patched in one piece, in bounded time."""
    chance = random.Random(5)
    before = {f"{i}": "\n".join(chance.choices("abcdefghijklm", k=20_000)) for i in range(8)}
    here = tmp_path / "workspace"
    after = {name: "\n".join(chance.choices("nopqrstuabcde", k=20_000)) for name in before}
    fill(here, after)
    patch = patch_between(here, before)
    assert patch.count("@@ -") == len(before)
    assert apply(patch, GIT, before, tmp_path / "applied") == after
