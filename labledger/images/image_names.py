"""Names of images: which of them a built image can have, and which no registry is asked for.

Somebody else could register the names that benchmark formats give to what they build. Such names
therefore begin with `LOCAL_PREFIX`, and are built without asking a registry.
"""

from __future__ import annotations

import re

LABEL = "org.labledger.build"
"""The label of built images; its value is the digest of what the image was built from."""

LOCAL_PREFIX = "labledger-"
"""What names begin with that are never pulled."""

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = rf"(?:{_COMPONENT}(?::[0-9]+)?/)?"
_BUILDABLE = re.compile(
    rf"{_HOST}{_COMPONENT}(?:/{_COMPONENT})*(?::[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?"
)
_MAX_CHARACTERS = 255


def is_buildable(ref: str) -> bool:
    """Return whether a built image can be called `ref`: NAME or NAME:TAG, without a digest."""
    return len(ref) <= _MAX_CHARACTERS and _BUILDABLE.fullmatch(ref) is not None


def with_tag(ref: str) -> str:
    """Return a name with the tag that it implies: `a` means `a:latest`."""
    return ref if ":" in ref.rpartition("/")[2] or "@" in ref else f"{ref}:latest"


def is_local(ref: str) -> bool:
    """Return whether no registry is asked for an image, because its name is labledger's own."""
    return ref.startswith(LOCAL_PREFIX)
