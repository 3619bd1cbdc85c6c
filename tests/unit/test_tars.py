"""The bytes of tars, which are part of stored digests, and truncated tars."""

from __future__ import annotations

import io
import tarfile

import pytest

from labledger.files import artifact_tars
from labledger.files.tars import PieceStream, SizeChanged, TarEntry, tar_chunks
from labledger.records.canonical_json import sha256_hex

FILE = tarfile.REGTYPE


def test_bytes_of_a_tar_never_change() -> None:
    """Files, links, folders, long names and full blocks always give the same bytes."""
    members = [
        (TarEntry("n" * 150, FILE), b""),
        (TarEntry("run.sh", FILE, 10, executable=True), b"#!/bin/sh\n"),
        (TarEntry("sub", tarfile.DIRTYPE), b""),
        (TarEntry("sub/link", tarfile.SYMTYPE, target="../run.sh"), b""),
        (TarEntry("é", FILE, 512), b"y" * 512),
    ]
    content = b"".join(tar_chunks((entry, [data]) for entry, data in members))
    assert sha256_hex(content) == "65c6f1b33983b78f300b41aaa4f8ec434321176d41d904462872ba642953bf00"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == [entry.name for entry, _ in members]


@pytest.mark.parametrize("content", [b"12", b"1234"], ids=["shorter", "longer"])
def test_file_that_changes_while_it_is_packed(content: bytes) -> None:
    """A file that changes during packing gives no tar."""
    with pytest.raises(SizeChanged, match="a"):
        list(tar_chunks([(TarEntry("a", FILE, 3), [content])]))


@pytest.mark.parametrize("blocks", [3, 5, 8])
def test_an_artifact_that_ends_early(blocks: int) -> None:
    """A tar that an engine truncated inside a file is refused as an artifact."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("top")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
        for name in ("top/a", "top/b"):
            info = tarfile.TarInfo(name)
            info.size = 3 * tarfile.BLOCKSIZE
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    stream = PieceStream(iter([buffer.getvalue()[: blocks * tarfile.BLOCKSIZE - 10]]))
    packer, packed = artifact_tars.ArtifactPacker(), artifact_tars.PackedArtifact("/top", "/top")
    with pytest.raises(artifact_tars.ArtifactsRefused, match="/top"):
        list(packer.pack(stream, packed))
