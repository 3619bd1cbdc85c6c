"""Content-addressed files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labledger.files.artifact_store import ArtifactStore
from labledger.records.canonical_json import sha256_hex


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def files(store: ArtifactStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file()]


def test_content_by_its_digest(store: ArtifactStore, tmp_path: Path) -> None:
    """Content is found by its digest and stored once, from bytes, streams and files."""
    content = os.urandom(3_000_000)
    sha256 = sha256_hex(content)
    assert not store.contains(sha256)
    assert store.put_bytes(content) == sha256
    inode = store.path(sha256).stat().st_ino
    assert store.put_bytes(content) == sha256
    assert store.path(sha256).stat().st_ino == inode
    source = tmp_path / "source"
    source.write_bytes(content)
    assert store.put_file(source) == (sha256, len(content))
    assert store.put_stream(iter([content[:10], b"", content[10:]])) == (sha256, len(content))
    assert store.path(sha256).read_bytes() == content
    assert files(store) == [store.path(sha256)]
    assert store.path(sha256).parts[-3:] == ("sha256", sha256[:2], sha256)


def test_a_changed_file_is_replaced(tmp_path: Path) -> None:
    """Content that is stored again replaces a changed file, and the changed file is kept."""
    reports: list[str] = []
    store = ArtifactStore(tmp_path / "artifacts", reports.append)
    sha256 = store.put_bytes(b"content")
    assert store.keeps(sha256)
    assert reports == []
    store.path(sha256).write_bytes(b"CONTENT")
    assert not store.keeps(sha256)
    assert store.put_bytes(b"content") == sha256
    assert store.checked(sha256).read_bytes() == b"content"
    kept = list((store.root / "damaged").iterdir())
    assert {path.read_bytes() for path in kept} == {b"CONTENT"}
    assert kept[0].name.startswith(sha256)
    assert str(kept[0]) in reports[0] + reports[-1]
    assert "was changed by another program" in reports[0]


def test_what_is_there_already_gets_a_durable_name(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that an earlier process wrote is synced again, since that process may have died."""
    digest = store.put_bytes(b"content")
    assert not store.keeps("0" * 64)
    synced: list[Path] = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.keeps(digest)
    assert synced == list(store.path(digest).parents[:2])


def test_nothing_half_written(store: ArtifactStore) -> None:
    """A stream that breaks off leaves no file at all."""

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        store.put_stream(broken())
    assert files(store) == []


def test_many_writers(store: ArtifactStore) -> None:
    """Threads that put the same content at once all succeed."""
    digests: list[str] = []
    content = b"x" * 100_000
    threads = [
        threading.Thread(target=lambda: digests.append(store.put_bytes(content))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests == [sha256_hex(content)] * 8
    assert files(store) == [store.path(digests[0])]
