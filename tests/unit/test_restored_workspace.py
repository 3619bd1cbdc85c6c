"""Workspaces restored from evidence that anybody may have written."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from labledger.files import artifact_tars
from labledger.files.artifact_store import ArtifactStore
from labledger.files.workspace_listing import Entry, Listing, MalformedListing
from labledger.files.workspace_seed import InlineSeed, TarSeed, UnsafeSeed
from labledger.records import JsonObject, canonical_json
from labledger.records.canonical_json import sha256_hex
from labledger.records.identity import Slot, TrialIds
from labledger.trial.restored_inputs import WorkspaceRestore
from labledger.trial.stored_trial import EvidenceIncomplete, StoredArtifacts, StoredTrial

X = {"kind": "file", "size": 1, "sha256": sha256_hex(b"x")}
NO_FILES: JsonObject = {"files": [], "left_out": [], "truncated": False, "empty": []}


def tar_of(*members: tuple[str, bytes, Any], **settings: Any) -> bytes:
    """Return a tar with members of any kind: a name, a type and content or target."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **settings) as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content or ""
                archive.addfile(info)
    return stream.getvalue()


def restore(
    tmp_path: Path, listing: JsonObject, seed: dict[str, str] | None = None, **artifacts: bytes
) -> Path:
    """Return the restored workspace of an earlier trial with this evidence."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    InlineSeed(seed or {}).fill(folder)
    contents = {sha256_hex(content): content for content in artifacts.values()}
    references = {
        f"workspace_{name}": f"artifact://sha256/{sha256_hex(content)}"
        for name, content in artifacts.items()
    }
    ids = TrialIds.of("r", Slot(0, "v", "t", 0))
    earlier = StoredTrial(ids, {}, {"evidence": references}, contents)
    wanted = Listing.of(canonical_json.dump_bytes(NO_FILES | listing))
    WorkspaceRestore(folder, wanted).restore(
        StoredArtifacts(earlier, ArtifactStore(tmp_path / "store"))
    )
    return folder


def listed(*names: str) -> list[JsonObject]:
    return [{"path": name} | X for name in names]


def outside(tmp_path: Path) -> set[str]:
    """Return the paths beside the workspace."""
    return {path.name for path in tmp_path.iterdir()} - {"workspace"}


HOSTILE_NAMES = [
    "../out",
    "/tmp/out",
    "a/../../out",
    "./x",
    "a//x",
    "",
    ".",
    "a/",
    "bad\ufffd",
    "nul\0x",
    "node_modules/x",
    "x" * 300,
    "/".join(["d" * 200] * 30),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    """A path that leads outside of the workspace is refused in every list."""
    tar = tar_of((name.replace("\0", ""), tarfile.REGTYPE, b"x"))
    for field in ("files", "left_out", "empty"):
        here = tmp_path / field
        here.mkdir()
        named = listed(name) if field == "files" else [name]
        if field == "left_out" and "/" not in name:
            continue
        with pytest.raises(EvidenceIncomplete):
            restore(here, {field: named}, files=tar)
        assert outside(here) == set()


def link(name: str, target: str) -> JsonObject:
    content = os.fsencode(target)
    return {"path": name, "kind": "link", "size": len(content), "sha256": sha256_hex(content)}


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Restored links keep their targets, and no file is written beneath or at them."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "file").write_text("safe")
    tar = tar_of(
        ("d", tarfile.SYMTYPE, "../victim"),
        ("d/x", tarfile.REGTYPE, b"x"),
        ("f", tarfile.SYMTYPE, "../file"),
        ("f", tarfile.REGTYPE, b"x"),
        ("e", tarfile.REGTYPE, b"x"),
    )
    with pytest.raises(EvidenceIncomplete, match="no file can be at this path"):
        restore(tmp_path, {"files": [link("d", "../victim"), *listed("d/x")]}, files=tar)
    (tmp_path / "workspace").rmdir()
    entries = [link("d", "../victim"), *listed("f", "e")]
    folder = restore(tmp_path, {"files": entries}, {"e": "old"}, files=tar)
    assert (folder / "d").readlink() == Path("../victim")
    assert (folder / "f").read_bytes() == (folder / "e").read_bytes() == b"x"
    assert list((tmp_path / "victim").iterdir()) == []
    assert (tmp_path / "file").read_text() == "safe"


@pytest.mark.parametrize(
    "kind",
    [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE],
)
def test_members_of_other_kinds(tmp_path: Path, kind: bytes) -> None:
    """Only plain files of a tar become files."""
    tar = tar_of(("x", kind, "/etc/hostname"))
    with pytest.raises(EvidenceIncomplete, match="x "):
        restore(tmp_path, {"files": listed("x")}, files=tar)
    assert list((tmp_path / "workspace").iterdir()) == []


@pytest.mark.parametrize(
    "tar", [b"no tar", b"\xff" * 512, tar_of(("x", tarfile.REGTYPE, b"x"))[:600], b"\0" * 700]
)
def test_broken_tars(tmp_path: Path, tar: bytes) -> None:
    """A broken stored archive is refused."""
    with pytest.raises(EvidenceIncomplete):
        restore(tmp_path, {"files": listed("x", "y")}, files=tar)


def test_content_that_is_another(tmp_path: Path) -> None:
    """Content of a tar, patch or seed is used only if its digest is listed."""
    tar = tar_of(("a", tarfile.REGTYPE, b"y"), ("b", tarfile.REGTYPE, b"x" * 99))
    patch = b"diff --git a/c b/c\n--- a/c\n+++ b/c\n@@ -1 +1 @@\n-s\n+y\n"
    with pytest.raises(EvidenceIncomplete) as caught:
        restore(
            tmp_path,
            {"files": listed("a", "b", "c", "d")},
            {"c": "s\n", "d": "y"},
            files=tar,
            patch=patch,
        )
    for name in "abcd":
        assert f"{name} (file of 1 bytes, " in caught.value.message


@pytest.mark.parametrize(
    ("listing", "word"),
    [
        ({"truncated": True}, "too many files"),
        ({"left_out": ["sub/.git"]}, "sub/.git (a folder whose content was not stored)"),
        ({"left_out": ["node_modules"]}, "node_modules"),
        ({"left_out": ["."]}, "its name was not stored"),
        ({"left_out": ["closed"]}, "closed (a folder that could not be read)"),
        ({"files": [{"path": "big", "kind": "file", "size": 1 << 40}]}, "big (it was too large"),
        (
            {"files": [{"path": "pipe", "kind": "other", "size": 0}]},
            "pipe (it was not a regular file)",
        ),
        (
            {"files": listed(*(f"f{i}" for i in range(9)))},
            "f4 (file of 1 bytes, not stored), and 4",
        ),
        ({"files": listed("a", "a/b")}, "a/b (no file can be at this path)"),
        ({"files": listed("a"), "empty": ["a"]}, "a (it cannot be a file and a folder)"),
        ({"files": listed("x"), "empty": ["d"]}, "x (file of 1 bytes, not stored)"),
        ({"empty": ["d", "d/e"]}, "d (a folder that was not restored exactly)"),
    ],
)
def test_what_is_not_known(tmp_path: Path, listing: JsonObject, word: str) -> None:
    """A workspace with a missing part is not restored, and the message names the part."""
    with pytest.raises(EvidenceIncomplete) as caught:
        restore(tmp_path, listing)
    assert word in caught.value.message


FOREIGN = [
    ("../out", tarfile.REGTYPE, b"x"),
    (".git/../../out", tarfile.REGTYPE, b"x"),
    (".git/d", tarfile.SYMTYPE, "../../victim"),
    (".git/d/x", tarfile.REGTYPE, b"x"),
    (".git/d/y", tarfile.SYMTYPE, "x"),
    (".git/d/z", tarfile.DIRTYPE, None),
    (".git/f", tarfile.REGTYPE, b"x"),
    (".git/f", tarfile.REGTYPE, b"y"),
    (".git/f/g", tarfile.REGTYPE, b"y"),
    (".git", tarfile.SYMTYPE, "../victim"),
    (".git/x", tarfile.REGTYPE, b"x"),
]


@pytest.mark.parametrize("folder", [".git", "src"])
def test_folders_kept_as_a_whole(tmp_path: Path, folder: str) -> None:
    """Only a tar names the files of such folders, and still no file is written outside."""
    (tmp_path / "victim").mkdir()
    mode = (tmp_path / "victim").stat().st_mode
    members = [(name.replace(".git", folder), kind, content) for name, kind, content in FOREIGN]
    for chosen in (members, *([one] for one in members), members[2:4], members[2:6], members[9:]):
        listing = {"left_out": [folder], "digests": {folder: "0" * 64}}
        with pytest.raises(EvidenceIncomplete):
            restore(tmp_path, listing, {"src/x": "x"}, files=tar_of(*chosen))
        assert outside(tmp_path) == {"victim"}
        assert list((tmp_path / "victim").iterdir()) == []
        assert (tmp_path / "victim").stat().st_mode == mode
        shutil.rmtree(tmp_path / "workspace")


def test_caches_do_not_matter(tmp_path: Path) -> None:
    """A cache is restored empty, and a cache of the seed that is gone stays gone."""
    listing = {"left_out": ["a/__pycache__", ".cache"], "files": listed("a/x")}
    seed = {"a/x": "x", "__pycache__/y": "y", ".cache/z": "z"}
    folder = restore(tmp_path, listing, seed)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert names == {"a", "a/x", "a/__pycache__", ".cache", ".cache/z"}


def test_listing_of_an_older_labledger(tmp_path: Path) -> None:
    """If empty folders are unknown, folders that lost their files are not restored."""
    listing = {"files": listed("a/x"), "empty": None}
    folder = restore(tmp_path, listing, {"a/x": "x", "b/c/y": "y", "a/d/z": "z"})
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == {"a", "a/x"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"files": 1, "left_out": [], "truncated": false}',
        b'{"files": [[]], "left_out": [], "truncated": false}',
        b'{"files": [{"path": "x", "kind": "file", "size": "y"}], "left_out": [], "truncated": 0}',
        b'{"files": [], "left_out": null, "truncated": false}',
    ],
)
def test_listings_that_are_none(content: bytes) -> None:
    """A stored listing of the wrong form is refused."""
    with pytest.raises(MalformedListing):
        Listing.of(content)


@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, b"x")],
        [("/tmp/out", tarfile.REGTYPE, b"x")],
        [("d", tarfile.SYMTYPE, ".."), ("d/out", tarfile.REGTYPE, b"x")],
        [("d", tarfile.SYMTYPE, "../out"), ("d", tarfile.REGTYPE, b"x")],
        [("d", tarfile.SYMTYPE, ".."), ("d/sub", tarfile.DIRTYPE, None)],
    ],
)
def test_seeds_that_labledger_did_not_make(tmp_path: Path, members: list[Any]) -> None:
    """The tar of a task's workspace may come from an imported ledger."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    store = ArtifactStore(tmp_path / "store")
    digest = store.put_bytes(tar_of(*members))
    with pytest.raises(UnsafeSeed):
        TarSeed(store, digest).fill(folder)
    assert outside(tmp_path) == {"store"}


def test_tar_of_any_names(tmp_path: Path) -> None:
    """An archive with names of any length is unpacked whole, and has its computed size."""
    contents = {
        ("d" * n + "/" + "f" * m)[-250:]: b"x" * n * m for n in (1, 99, 100) for m in (1, 150)
    }
    entries = {"empty" + "e" * n: Entry("folder", 0) for n in (1, 94, 95, 96, 150)}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        entries[name] = Entry("file", len(content), executable=len(content) % 2 == 1)
    for n in (1, 99, 100, 101, 3000):
        (tmp_path / f"link{n}").symlink_to("\udcff" * n)
        entries[f"link{n}"] = Entry("link", n)
    packed = b"".join(artifact_tars.tar_of(entries, {name: tmp_path / name for name in entries}))
    assert len(packed) == artifact_tars.size_of(entries)
    restored = {
        m.name: (m.kind, m.executable, m.target or b"".join(m.content))
        for m in artifact_tars.members(io.BytesIO(packed))
    }
    assert restored == {
        name: (e.kind, e.executable, contents.get(name, b"\xff" * e.size))
        for name, e in entries.items()
    }
