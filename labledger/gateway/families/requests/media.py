"""The most tokens that images, documents, audio and video in a request may count for.

Each figure is the largest that a provider of the API documents. Images count by the size in their
header, as detailed ones. The length of a document or recording cannot be read, so it counts with a
whole context window. So does outside content.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from labledger.gateway.families.requests.image_headers import Size, image_size

WINDOW = 1_050_000
"""The largest context window that a provider documents, in tokens."""
STORED_ITEM_TOKENS = 128_000
"""The largest output that a provider documents. No stored item has more tokens."""
IMAGE_TOKENS = 50_000
"""More tokens than OpenAI or Google count for an image of any size."""
ANTHROPIC_IMAGE_TOKENS = 86_000
"""The tokens of the largest image that Anthropic accepts at full size: 8,000 by 8,000 pixels."""
_HEADER_CHARACTERS = 400_000
"""How many base64 characters are searched for a size. Photographs begin with thumbnails."""
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HeldMedia:
    """One image, document or recording that a request holds."""

    size: int
    """How many bytes of the request it takes."""
    tokens: int
    """The most tokens that it may count for."""
    is_sound: bool = False
    """Whether it holds sound, which has other prices than text."""


def _anthropic_tokens(size: Size) -> int:
    width, height = size
    pixels = ceil(max(width * height / 750, ceil(width / 28) * ceil(height / 28))) + 16
    return min(ANTHROPIC_IMAGE_TOKENS, pixels)


def _openai_tokens(size: Size) -> int:
    """Return the largest figure of three rules: by tiles, by patches, and of open models."""
    scale = min(1.0, 2048 / max(size))
    scale *= min(1.0, 768 / (min(size) * scale))
    tiles = ceil(size[0] * scale / 512) * ceil(size[1] * scale / 512)
    patches = ceil(size[0] / 28) * ceil(size[1] / 28)
    return min(IMAGE_TOKENS, max(2833 + 5667 * min(tiles, 8), ceil(2.5 * patches)))


def _gemini_tokens(size: Size) -> int:
    unit = min(768, max(256, int(min(size) / 1.5)))
    return max(2_240, 258 * ceil(size[0] / unit) * ceil(size[1] / unit))


@dataclass(frozen=True, slots=True)
class ImageRule:
    """The tokens of an image in the most expensive model of an API."""

    by_size: Callable[[Size], int]
    most: int
    """The tokens if the size cannot be read."""


ANTHROPIC_IMAGES = ImageRule(_anthropic_tokens, ANTHROPIC_IMAGE_TOKENS)
OPENAI_IMAGES = ImageRule(_openai_tokens, IMAGE_TOKENS)
GEMINI_IMAGES = ImageRule(_gemini_tokens, IMAGE_TOKENS)


def image(encoded: str, rule: ImageRule) -> HeldMedia:
    """Return an image that is base64, or a data URL."""
    characters = _DATA_URL.sub("", encoded, count=1) if encoded[:5].lower() == "data:" else encoded
    data = _decoded(characters)
    size = image_size(data)
    if size is not None:
        return HeldMedia(len(encoded), rule.by_size(size))
    return HeldMedia(len(encoded), WINDOW if data.startswith(b"%PDF") else rule.most)


def document(encoded: str) -> HeldMedia:
    """Return a file in base64, which may be a PDF."""
    return HeldMedia(len(encoded), WINDOW)


def sound(encoded: str) -> HeldMedia:
    """Return a recording or a film in base64."""
    return HeldMedia(len(encoded), WINDOW, is_sound=True)


def _decoded(characters: str) -> bytes:
    """Return the first bytes of base64; empty if another reader could see other bytes."""
    start = characters[:_HEADER_CHARACTERS]
    start = start[: len(start) - len(start) % 4]
    try:
        return base64.b64decode(start, validate=True)
    except (binascii.Error, ValueError):
        return b""
