"""Read the size of an image from its header: PNG, JPEG, GIF and WebP.

Only the first bytes are read, and nothing is decoded. An image has no size here if its header names
none, or if two readers could see different sizes.
"""

from __future__ import annotations

from collections.abc import Callable

Size = tuple[int, int]
"""Width and height in pixels."""

_MAX_PARTS = 4096
"""The most parts of a file that are examined. Then its size counts as unknown."""


def image_size(data: bytes) -> Size | None:
    """Return the size of the image that begins with `data`; None if it cannot be read."""
    for magic, reader in _READERS:
        if data.startswith(magic):
            size = reader(data)
            return size if size is not None and min(size) > 0 else None
    return None


def _png(data: bytes) -> Size | None:
    """Return the size in the headers before the picture. Some readers believe the last one."""
    sizes: list[Size] = []
    place = 8
    for _ in range(_MAX_PARTS):
        kind = data[place + 4 : place + 8]
        if kind == b"IHDR" and place + 16 <= len(data):
            sizes.append((_big(data, place + 8, 4), _big(data, place + 12, 4)))
        elif kind == b"IDAT" or len(kind) < 4 or not sizes:
            return _largest(sizes) if kind == b"IDAT" else None
        place += 12 + _big(data, place, 4)
    return None


def _jpeg(data: bytes) -> Size | None:
    """Return the size in the frame headers before the picture.

    Some readers believe the last one. A height of 0, which a later part sets, is not a size.
    """
    sizes: list[Size] = []
    place = 2
    for _ in range(_MAX_PARTS):
        marker = data[place : place + 2]
        if len(marker) < 2 or marker[0] != 0xFF:
            return None
        kind = marker[1]
        if kind == 0xFF:
            place += 1
            continue
        if kind in _FRAMES and place + 9 <= len(data):
            sizes.append((_big(data, place + 7, 2), _big(data, place + 5, 2)))
        elif kind in _WITHOUT_FRAME:
            return _largest(sizes) if kind == _PICTURE else None
        place += 2 + _big(data, place + 2, 2)
    return None


def _largest(sizes: list[Size]) -> Size | None:
    """Return a width and height that hold all sizes; None if one of them is invalid."""
    if not sizes or min(map(min, sizes)) == 0:
        return None
    return max(width for width, _ in sizes), max(height for _, height in sizes)


_PICTURE = 0xDA
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_FRAME = frozenset({0x00, 0x01, *range(0xD0, 0xDB)})
"""Markers before which the frame header must have come."""


def _gif(data: bytes) -> Size | None:
    """Return the size that holds the screen and the first picture, which may be larger."""
    if len(data) < 13:
        return None
    width, height = _little(data, 6, 2), _little(data, 8, 2)
    place = 13 + (3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0)
    for _ in range(_MAX_PARTS):
        if place + 10 > len(data):
            return None
        if data[place] == 0x2C:
            right = _little(data, place + 1, 2) + _little(data, place + 5, 2)
            bottom = _little(data, place + 3, 2) + _little(data, place + 7, 2)
            return max(width, right), max(height, bottom)
        if data[place] == 0x21:
            place += 2
        elif data[place] == 0x00:  # The end of an extension.
            place += 1
            continue
        else:
            return None
        while place < len(data) and data[place]:
            place += 1 + data[place]
    return None


def _webp(data: bytes) -> Size | None:
    """Return the size of a still image. An animation has several."""
    if len(data) < 30 or data[8:12] != b"WEBP":
        return None
    kind = data[12:16]
    if kind == b"VP8X" and not data[20] & 0x02:
        return 1 + _little(data, 24, 3), 1 + _little(data, 27, 3)
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _little(data, 21, 4)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    return None


def _big(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "big")


def _little(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


_READERS: tuple[tuple[bytes, Callable[[bytes], Size | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8\xff", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
)
