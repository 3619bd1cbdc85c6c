"""The list of a container's changes, its exclusions, and how it is read with few requests."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace

import pytest

from labledger.engine.container_files import ChangeKind
from labledger.files.untrusted_files import printable
from labledger.files.workspace_listing import MalformedListing
from labledger.trial.evidence import engine_archives
from labledger.trial.evidence.container_changes import (
    Change,
    ChangeList,
    Exclusions,
    is_exact,
)
from labledger.trial.evidence.engine_archives import LinkedContent, SnapshotWriter
from labledger.trial.evidence.redaction import Redactor

FILE = Change("srv/app/x", "changed", "file", 0o640, 1, 2, 3, 4, sha256="0" * 64)
LINK = Change("srv/app/l", "added", "link", 0o777, target="x")
CHANGES = (FILE, LINK, Change("etc/group", "deleted"), Change("srv/s", "added", "socket"))


def test_list_is_stored_and_read() -> None:
    """A stored list is read back unchanged, in the order of its paths."""
    stored = ChangeList("/srv/app", {change.path: change for change in CHANGES}, ["/data"], True)
    content = json.dumps(stored.as_json()).encode()
    assert ChangeList.of(content) == stored
    paths = [change["path"] for change in json.loads(content)["changes"]]
    assert paths == sorted(paths)


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"changes": 1},
        {"changes": [{"path": "x"}]},
        {"changes": [{"path": "x", "change": "added", "mode": "0"}]},
        {"changes": [{"path": 1, "change": "added"}]},
        {"changes": [{"path": "x", "change": "added", "what": 1}]},
        {"volumes": None},
    ],
)
def test_malformed_lists(wrong: dict[str, object]) -> None:
    """A list with other fields or types is refused whole."""
    content = json.dumps(ChangeList("/x").as_json() | wrong).encode()
    with pytest.raises(MalformedListing):
        ChangeList.of(content)


def test_what_is_stored() -> None:
    """A file needs a digest, sockets and deletions do not, and devices cannot be restored."""
    assert all(change.is_stored for change in CHANGES)
    assert not replace(FILE, sha256=None).is_stored
    assert not Change("x", "added", "other").is_stored
    assert not Change("x", "added").is_stored


@pytest.mark.parametrize("path", ["/x", "../x", "a/../b", "a//b", "", ".", "a\ufffd"])
def test_paths_that_are_not_exact(path: str) -> None:
    """Only exact paths are restored."""
    assert not is_exact(path)
    assert not is_exact("a\udcff")
    assert is_exact("a/b c\n")
    assert printable("a\udcff") == "a\ufffd"


def test_exclusions() -> None:
    """Mounts, the engine's files and folders made for mounts are not changes."""
    exclusions = Exclusions.of(["/logs/agent", "/srv/app/data"])
    for path in ("logs/agent/x", "srv/app/data", "dev/null", "agentlab/out/x", "etc/hosts"):
        assert exclusions.excludes(path)
    for path in ("logs", "logs/agents", "srv/app/x", "device", "etc/hosts.allow"):
        assert not exclusions.excludes(path)
    change = Change("logs", "added", "folder", 0o755)
    assert exclusions.was_made_by_engine(change)
    assert not exclusions.was_made_by_engine(replace(change, mode=0o700))
    assert not exclusions.was_made_by_engine(replace(change, change="changed"))
    assert not exclusions.was_made_by_engine(replace(change, path="other"))


def requests(wanted: dict[str, ChangeKind], *not_whole: str) -> list[tuple[str, bool]]:
    requests = engine_archives.archive_requests(
        wanted, lambda path: (False, path), lambda path: path in not_whole
    )
    return [(request.path, request.whole) for request in requests]


def test_few_requests() -> None:
    """A new folder needs one request, even with many changes, unless something prevents it."""
    new: dict[str, ChangeKind] = {
        "a": "changed",
        "a/n": "added",
        "a/n/1": "added",
        "a/x": "changed",
    }
    assert requests(new) == [("a", False), ("a/n", True), ("a/x", False)]
    many: dict[str, ChangeKind] = {"a": "changed", "b": "changed"}
    many |= {f"a/{n:02}": "changed" for n in range(20)}
    assert requests(many) == [("a", True), ("b", False)]
    assert len(requests(many, "a")) == 22
    assert requests({"d/e/1": "changed"}) == [("d/e/1", False)]


def writer(redactor: Redactor | None = None) -> SnapshotWriter:
    return SnapshotWriter(io.BytesIO(), redactor or Redactor({}))


def names(written: SnapshotWriter) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(written.chunks()))) as tar:
        return tar.getnames()


def test_snapshot_of_hard_links() -> None:
    """A second name of a stored file has its content, also if the first name is left out."""
    written = writer()

    def linked(path: str) -> object:
        raise LinkedContent(path)
        yield b""

    written.add(replace(FILE, path="a"), iter([b"four"]))
    written.add(replace(FILE, path="b", size=0), linked("a"))  # type: ignore[arg-type]
    written.add(replace(FILE, path="c", size=0), linked("z"))  # type: ignore[arg-type]
    assert written.content("b", 10) == b"four"
    assert written.changes["a"].sha256 == written.changes["b"].sha256
    assert [*written.left_out] == ["are other names of files that are left out"]
    assert names(written) == ["a", "b"]


def test_snapshot_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that exceeds the limit is left out; smaller files after it are not."""
    monkeypatch.setattr(engine_archives, "CAP", 4_000)
    written = writer()
    written.add(replace(FILE, path="large", size=5_000), iter([bytes(5_000)]))
    written.add(replace(FILE, path="short", size=9), iter([b"eight ch"]))
    written.add(FILE, iter([b"four"]))
    assert not written.changes["large"].is_stored
    assert sorted(left.first for left in written.left_out.values()) == ["large", "short"]
    assert names(written) == [FILE.path]


def test_snapshot_without_secrets() -> None:
    """A secret in a content, name or link target excludes the file, also across two pieces."""
    written = writer(Redactor({"KEY": "tops3cret"}))
    size = len(b"a tops3cret b")
    written.add(replace(FILE, path="held", size=size), iter([b"a tops", b"3cret b"]))
    written.add(replace(LINK, target="/tops3cret"), iter(()))
    written.add(Change("tops3cret", "added", "folder", 0o755), iter(()))
    written.add(replace(FILE, path="fine", size=2), iter([b"ok"]))
    assert written.left_out["hold secrets"].count == 3
    content = b"".join(written.chunks())
    assert b"tops" not in content
    assert b"ok" in content
