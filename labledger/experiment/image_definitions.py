"""How the images of an experiment are built that nobody has built yet: its section `images`.

Each entry is stored with the digest of its context, which stands for it in the run's digest: where
the context lies and how long a build may take change no result. Nothing is built here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from labledger.engine.build_context import DEFAULT_DOCKERFILE, BuildContext, UnusableContext
from labledger.engine.dockerfiles import with_tag
from labledger.experiment.field_problems import UnusablePath, relative_name
from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import Section, normalize_number

DEFAULT_TIMEOUT_S = 600
_HINT = "paths start from the experiment file's folder"


@dataclass(frozen=True, slots=True)
class ImageBuild(Section):
    """How an image is built, and from what."""

    context: str
    """The folder as authored, relative to the experiment file."""
    dockerfile: str = DEFAULT_DOCKERFILE
    timeout_s: float = DEFAULT_TIMEOUT_S
    target: str | None = None
    args: Mapping[str, str] | None = None
    digest: str = ""
    """SHA-256 (hex) over what can change the image; see `BuildContext.digest`."""
    source: BuildContext | None = field(default=None, compare=False)
    """What to build from; None in a stored document."""

    _OPTIONAL = frozenset({"target", "args"})

    @classmethod
    def of_authored(cls, authored: JsonObject, folder: Path) -> Self:
        """Return an authored build with its digest. Raises `UnusablePath`."""
        source = build_context(authored, folder)
        given = {key: value for key, value in authored.items() if key != "args"}
        build = cls.from_json(given)
        try:
            digest = source.digest()
        except UnusableContext as error:
            raise UnusablePath(str(error), _HINT) from None
        return replace(build, args=source.args, digest=digest, source=source)


def build_context(authored: JsonObject, folder: Path) -> BuildContext:
    """Return what an authored build is made from, without reading its content.

    Raises `UnusablePath` if folder or Dockerfile are missing or lead out of `folder`.
    """
    context = folder / relative_name(authored["context"])
    args = authored.get("args")
    source = BuildContext(
        context,
        relative_name(authored.get("dockerfile", DEFAULT_DOCKERFILE)),
        authored.get("target"),
        None if args is None else {name: _text(args[name]) for name in sorted(args)},
    )
    if not context.resolve().is_relative_to(folder.resolve()):
        raise UnusablePath(f"{authored['context']!r} is a link that leads out of the folder")
    try:
        source.require_usable()
    except UnusableContext as error:
        raise UnusablePath(str(error), _HINT) from None
    return source


def find_build(builds: Mapping[str, ImageBuild] | None, ref: str) -> ImageBuild | None:
    """Return how the image `ref` is built, or None. A name without a tag means `latest`."""
    return next((b for name, b in (builds or {}).items() if with_tag(name) == with_tag(ref)), None)


def _text(value: str | float | bool) -> str:
    return value if isinstance(value, str) else canonical_json.dumps(normalize_number(value))
