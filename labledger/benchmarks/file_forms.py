"""Describe the form of a benchmark file in one sentence, if labledger cannot read it."""

from __future__ import annotations

import codecs
from pathlib import Path

from labledger.errors import InvalidInput, Problem

_READ = "labledger reads JSON lines or a JSON array in UTF-8, plain or gzip"
_HEAD = 4096

_COMPRESSED = "is compressed with {}"
_PANDAS = "pandas.read_parquet(FILE).to_json(OTHER, orient='records', lines=True) converts it"
_FORMS: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1", "is Parquet", _PANDAS),
    (b"ARROW1", "is Arrow", "convert it to JSON lines"),
    (b"\xfd7zXZ\0", _COMPRESSED.format("xz"), "`xz -d` decompresses it"),
    (b"BZh", _COMPRESSED.format("bzip2"), "`bzip2 -d` decompresses it"),
    (b"\x28\xb5\x2f\xfd", _COMPRESSED.format("zstd"), "`zstd -d` decompresses it"),
    (b"PK\x03\x04", "is a ZIP archive", "unpack it"),
    (b"SQLite format 3\0", "is an SQLite database", "export its rows as JSON lines"),
    (b"version https://git-lfs", "is a pointer of Git LFS", "run `git lfs pull` in its repository"),
    (codecs.BOM_UTF32_LE, "is UTF-32", "`iconv -f UTF-32 -t UTF-8` converts it"),
    (codecs.BOM_UTF32_BE, "is UTF-32", "`iconv -f UTF-32 -t UTF-8` converts it"),
    (codecs.BOM_UTF16_LE, "is UTF-16", "`iconv -f UTF-16 -t UTF-8` converts it"),
    (codecs.BOM_UTF16_BE, "is UTF-16", "`iconv -f UTF-16 -t UTF-8` converts it"),
    (b"<", "looks like HTML or XML", "download the file itself, not its page"),
)  # fmt: skip


def as_json_text(what: str, path: Path, content: bytes) -> bytes:
    """Return the content of a JSON file without a byte order mark.

    For another form, raises `InvalidInput` that says what the form is, and that `what` failed.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    head = content[:_HEAD].lstrip()
    for start, form, hint in _FORMS:
        if content.startswith(start) or (start.isascii() and head.startswith(start)):
            raise InvalidInput(what, [Problem(str(path), f"{form}; {_READ}", hint=hint)])
    if b"\0" in content[:_HEAD]:
        raise InvalidInput(what, [Problem(str(path), f"is binary; {_READ}")])
    return content
