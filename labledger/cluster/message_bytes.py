"""Messages as the bytes that a transport carries, in a format that cannot execute anything.

The first line is text that every version of labledger can read: `labledger PROTOCOL VERSION`. The
rest is msgpack, read by the types of the messages' fields. What most messages of a run repeat, its
setup and the plan of a variant, is encoded once by whoever sends it, and read once by whoever gets
it: both sides handle many small messages.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import is_dataclass
from typing import Any

from labledger import __version__
from labledger.cluster import host_messages
from labledger.cluster.host_messages import PROTOCOL, HostRefused
from labledger.cluster.typed_values import codec, packed, unpacked

MAX_MESSAGE_BYTES = 256 << 20
"""A longer message is refused. One with results holds about 8 MiB, or a single result."""
_PLAIN, _COMPRESSED = b"p", b"z"
_MAX_COMPRESSED_BYTES = 1 << 20
_FIRST_LINE = re.compile(rb"labledger ([0-9]{1,9}) ([0-9A-Za-z.+-]{1,40})\n")
_OWN_LINE = f"labledger {PROTOCOL} {__version__}\n".encode()

_SAME_VERSION = "install the same version on both"
_MAX_PROBLEM = 300
_KINDS = {name: kind for name, kind in vars(host_messages).items() if is_dataclass(kind)}
"""What a message may be, by name."""


class BadMessage(HostRefused):
    """What arrived is no message of this version of labledger. The text continues a sentence."""


def encode(message: object) -> bytes:
    """Return a message as bytes.

    Compressed unless it is large, so that no log of a transport shows what is in it.
    """
    kind = type(message)
    content = packed([kind.__name__, codec(kind).pack(message)])
    if len(content) > _MAX_COMPRESSED_BYTES:
        return _OWN_LINE + _PLAIN + content
    return _OWN_LINE + _COMPRESSED + zlib.compress(content, 1)


def decode(content: bytes) -> Any:
    """Return the message in `content`. Raises `BadMessage`, for whatever bytes these are."""
    line = _FIRST_LINE.match(content)
    if line is None:
        raise BadMessage(
            "answers in a form that this version of labledger does not know; it may have an "
            f"earlier one: {_SAME_VERSION}"
        )
    if line[0] != _OWN_LINE:
        version = line[2].decode()
        raise BadMessage(f"has labledger {version}, and this is {__version__}: {_SAME_VERSION}")
    if len(content) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"sent a message of {len(content):,} bytes, which is too long")
    try:
        name, values = unpacked(_plain(memoryview(content)[line.end() :]))
        return codec(_KINDS[name]).unpack(values)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        zlib.error,
    ) as error:
        problem = f"{type(error).__name__}: {error}"[:_MAX_PROBLEM]
        raise BadMessage(f"sent a message that cannot be read: {problem}") from error


def _plain(body: memoryview) -> bytes | memoryview:
    if body[:1] != _COMPRESSED:
        return body[1:]
    reader = zlib.decompressobj()
    content = reader.decompress(body[1:], _MAX_COMPRESSED_BYTES)
    if not reader.eof:
        raise ValueError("it is longer than it may be, or cut off")
    return content
