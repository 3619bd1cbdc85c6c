"""What names of images and Dockerfiles say, as far as labledger must understand it.

A Dockerfile is the text of a stranger: it is searched line by line and never run. Lines that only
BuildKit can build are found before a build, because the engine's own builder does not know them, or
gives the arguments another value without a word. Names of images that labledger builds begin with
`LOCAL_PREFIX`, and no registry is asked for them: somebody else could register such a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEREDOC = re.compile(r"[0-9]*<<-?(['\"]?)([A-Za-z_][\w.-]*)\1[;)&|]*")
_INSTRUCTION = re.compile(r"\s*(?:ONBUILD\s+)?([A-Za-z]+)\s+(.*)", re.DOTALL)
_FLAG = re.compile(r"--([a-z-]+)(?:=|\s|$)")
_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S+)\s*")
_ARGUMENT = re.compile(r"((?:TARGET|BUILD)(?:PLATFORM|OS|ARCH|VARIANT))")
_STANDARD_FRONTEND = re.compile(r"(?:docker\.io/)?docker/dockerfile(?:-upstream)?(?:[:@].*)?")

_FLAGS = {
    "RUN": {"mount": False, "network": False, "security": False},
    "COPY": {"chmod": False, "link": True, "parents": True, "exclude": True},
    "ADD": {"chmod": False, "link": True, "checksum": True, "keep-git-dir": True, "exclude": True},
}
"""The flags that only BuildKit knows, each with whether it came with Dockerfile 1.4 or later."""


@dataclass(frozen=True, slots=True)
class BuildKitNeed:
    """Something in a Dockerfile that only BuildKit can build."""

    line: int
    what: str
    is_recent: bool = False
    """Whether it needs Dockerfile 1.4, which engines before 23 have not built in."""


@dataclass(frozen=True, slots=True)
class BuildKitNeeds:
    """What only BuildKit can build in one Dockerfile."""

    needs: tuple[BuildKitNeed, ...]
    has_syntax: bool
    """Whether the file names the version of its language, which BuildKit then gets."""

    @property
    def is_recent(self) -> bool:
        """Whether an engine older than 23 cannot build it, even with BuildKit."""
        return not self.has_syntax and any(need.is_recent for need in self.needs)

    def __str__(self) -> str:
        return ", ".join(f"line {need.line}: {need.what}" for need in self.needs[:3])


def buildkit_needs(text: str) -> BuildKitNeeds:
    """Return what in the text of a Dockerfile needs BuildKit."""
    lines = text.removeprefix("\ufeff").splitlines()
    directives = dict(_directives(lines))
    needs: list[BuildKitNeed] = []
    syntax = directives.get("syntax")
    if syntax is not None and not _STANDARD_FRONTEND.fullmatch(syntax):
        needs.append(BuildKitNeed(1, f"# syntax={syntax}"))
    for number, instruction in _instructions(lines, directives.get("escape", "\\")):
        needs += _needs_of(number, instruction)
    return BuildKitNeeds(tuple(needs), syntax is not None)


def _directives(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the parser directives, which end at the first line that is none."""
    for line in lines:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            return
        yield match[1].lower(), match[2]


def _instructions(lines: list[str], escape: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction, continued lines joined, with the number of its first line."""
    first, joined = 0, ""
    end_of_heredoc = None
    for number, line in enumerate(lines, 1):
        if end_of_heredoc is not None:
            if line.strip() == end_of_heredoc:
                end_of_heredoc = None
            continue
        if line.lstrip().startswith("#") or (joined and not line.strip()):
            continue
        first = first if joined else number
        stripped = line.rstrip()
        if stripped.endswith(escape):
            joined += stripped[:-1] + " "
            continue
        instruction, joined = joined + line, ""
        yield first, instruction
        heredoc = _heredoc(instruction)
        end_of_heredoc = None if heredoc is None else heredoc[2]
    if joined:
        yield first, joined


def _heredoc(instruction: str) -> re.Match[str] | None:
    match = _INSTRUCTION.fullmatch(instruction)
    if match is None or match[1].upper() not in _FLAGS:
        return None
    return next(filter(None, map(_HEREDOC.fullmatch, match[2].split())), None)


def _needs_of(number: int, instruction: str) -> Iterator[BuildKitNeed]:
    match = _INSTRUCTION.fullmatch(instruction)
    if match is None:
        return
    name, rest = match[1].upper(), match[2].strip()
    if name == "ARG":
        for argument in filter(_ARGUMENT.fullmatch, rest.split()):
            yield BuildKitNeed(number, f"ARG {argument}")
    known = _FLAGS.get(name, {})
    for word in rest.split():
        flag = _FLAG.match(word)
        if flag is None:
            break
        if flag[1] in known:
            yield BuildKitNeed(number, f"{name} --{flag[1]}", known[flag[1]])
    if (heredoc := _heredoc(instruction)) is not None:
        yield BuildKitNeed(number, f"{name} {heredoc[0]}", is_recent=True)


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
