"""Read the profiles of agents, and find them.

A profile is a folder with `profile.toml` and `launch.sh`, and for a package from PyPI optionally
`constraints.txt` for its own version. Other packages add profiles by entry points of the group
`labledger.agents`: each has the profile's name, and loads the path of its folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from labledger import plug_ins
from labledger.errors import InvalidInput, Problem
from labledger.records import JsonObject
from labledger.records.json_codec import Section
from labledger.records.json_schemas import read_toml, refuse_problems
from labledger.records.model_calls import Api
from labledger.text.words import near_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "labledger.agents"
PROFILE, LAUNCH, CONSTRAINTS = "profile.toml", "launch.sh", "constraints.txt"
STDOUT = "stdout"
"""The name of the agent's output among the logs of a profile."""

Value = str | int | float | bool
"""The value of an option."""

_OWN_FOLDER = Path(__file__).resolve().parent


class OptionType(StrEnum):
    """The type of an option's value."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"

    def read(self, given: object) -> Value | None:
        """Return a value of this type, converted from text if needed; None if it does not fit."""
        if isinstance(given, str):
            return self._read_text(given)
        if isinstance(given, bool) or self is OptionType.BOOLEAN:
            fits = isinstance(given, bool) and self is OptionType.BOOLEAN
        else:
            kinds = {OptionType.INTEGER: int, OptionType.NUMBER: int | float}
            fits = self is not OptionType.TEXT and isinstance(given, kinds[self])
        return given if fits else None  # type: ignore[return-value]

    def _read_text(self, given: str) -> Value | None:
        if self is OptionType.TEXT:
            return given
        if self is OptionType.BOOLEAN:
            return {"true": True, "false": False}.get(given)
        try:
            return int(given) if self is OptionType.INTEGER else float(given)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class ProfileOption(Section):
    """A setting of the agent that an experiment may choose."""

    type: OptionType
    description: str
    default: Value | None = None
    """The default value; None leaves the decision to the agent."""
    choices: tuple[str, ...] = ()
    """The allowed values of a text; empty allows any."""
    arguments: tuple[str, ...] = ()
    """Arguments of the agent's command, in which ``{value}`` is the value. A false boolean adds
    none."""
    variable: str | None = None
    """An environment variable that gets the value."""

    def problem_with(self, value: object) -> str | None:
        """Return what is wrong with a value, or None."""
        read = self.type.read(value)
        if read is None:
            return f"found {value!r}; expected a value of the type {self.type}"
        if self.choices and read not in self.choices:
            return f"found {value!r}; expected one of {', '.join(self.choices)}"
        return None


class Registry(StrEnum):
    """Where an agent's package is published."""

    NPM = "npm"
    PYPI = "pypi"
    FOLDER = "folder"
    """Not a registry: the profile's own folder has the program."""


@dataclass(frozen=True, slots=True)
class GitSource(Section):
    """The files of a repository at one commit."""

    url: str
    commit: str
    folder: str
    """The name of the folder below `git` of the installed agent."""


@dataclass(frozen=True, slots=True)
class PackageSource(Section):
    """The package of an agent, or the dependencies of a program in a folder."""

    registry: Registry
    package: str = ""
    """Empty for a folder."""
    native: Mapping[str, str] = field(default_factory=dict)
    """Packages with a program, by machine and C library, such as ``x86_64-glibc``."""
    python: tuple[tuple[int, int], tuple[int, int]] | None = None
    """The oldest and the newest Python that a package of PyPI supports."""
    # Not in the representation, which is part of the names of installed agents.
    packages: tuple[str, ...] = field(default=(), repr=False)
    """For a folder: packages of PyPI, each ``NAME==VERSION``."""
    npm: tuple[str, ...] = field(default=(), repr=False)
    """For a folder: packages of npm, each ``NAME@VERSION``."""
    wheels: tuple[str, ...] = field(default=(), repr=False)
    """For a folder: wheels in it, which are installed without their dependencies."""
    git: tuple[GitSource, ...] = field(default=(), repr=False)
    """For a folder: repositories."""

    _KEYS: ClassVar = {"registry": "from"}


@dataclass(frozen=True, slots=True)
class AgentProfile(Section):
    """An agent program that labledger can install and start."""

    name: str
    description: str
    license: str
    homepage: str
    version: str
    """The tested version, used if an experiment names none."""
    apis: tuple[Api, ...]
    """The APIs that it speaks, the usual one first."""
    source: PackageSource
    schema_version: str
    options: Mapping[str, ProfileOption] = field(default_factory=dict)
    """The options by name."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Its own logs: by name, a file in the folder of logs, or `stdout`."""
    needs: tuple[str, ...] = ()
    """Programs that an image must have, such as ``bash``."""
    folder: Path = field(default=Path(), compare=False)
    """The folder with `profile.toml` and `launch.sh`. Not in the file."""
    source_sha256: str | None = field(default=None, compare=False)
    """For a folder in an experiment: the digest of all its files. Not in the file."""

    _KEYS: ClassVar = {"source": "install"}


def read_profile(folder: Path) -> AgentProfile:
    """Return the profile in a folder. Raises `InvalidInput` with all problems."""
    path = folder / PROFILE
    document = read_toml(path, "agent_profile_v1")
    refuse_problems(path, _contradictions(folder, document))
    install = document["install"]
    if "python" in install:
        install["python"] = [(3, int(text.removeprefix("3."))) for text in install["python"]]
    return replace(AgentProfile.from_json(document), folder=folder)


def _contradictions(
    folder: Path, document: JsonObject
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the problems of a document that its schema cannot detect."""
    if document["name"] != folder.name:
        yield ("name",), f"found {document['name']!r} in the folder {folder.name!r}"
    if not (folder / LAUNCH).is_file():
        yield (), f"there is no {LAUNCH} beside it"
    install = document["install"]
    registry = install["from"]
    yield from _folder_contradictions(folder, install)
    if registry == Registry.NPM and "python" in install:
        yield ("install", "python"), "a package of npm needs no Python"
    if registry == Registry.PYPI and "native" in install:
        yield ("install", "native"), "a package of PyPI has no packages for platforms"
    if registry == Registry.PYPI and "python" not in install:
        yield ("install",), "'python' is missing: the Pythons that the package supports"
    for name, option in document.get("options", {}).items():
        at = ("options", name)
        if "arguments" not in option and "variable" not in option:
            yield at, "expected arguments or a variable: otherwise the option has no effect"
        if "choices" in option and option["type"] != OptionType.TEXT:
            yield (*at, "choices"), "only a text has choices"
        read = ProfileOption.from_json(option)
        if "default" in option and (problem := read.problem_with(option["default"])):
            yield (*at, "default"), problem


def _folder_contradictions(
    folder: Path, install: JsonObject
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the problems of keys that only folders or only registries may have."""
    of_folder = install["from"] == Registry.FOLDER
    if of_folder != ("package" not in install):
        problem = "has no package of its own" if of_folder else "names no package"
        yield ("install",), f"an agent from {install['from']} {problem}"
    for name in ("packages", "npm", "wheels", "git"):
        if name in install and not of_folder:
            yield ("install", name), "is for an agent from a folder"
    if of_folder and "native" in install:
        yield ("install", "native"), "is for a package of npm"
    if ({"packages", "wheels"} & install.keys()) and "python" not in install:
        yield ("install",), "'python' is missing: the Pythons that the packages support"
    for index, name in enumerate(install.get("wheels", ())):
        if not (folder / name).is_file():
            yield ("install", "wheels", index), f"there is no file {name}"
    folders = [repository["folder"] for repository in install.get("git", ())]
    if len(set(folders)) < len(folders):
        yield ("install", "git"), "two repositories have the same folder"


def is_folder(name: str) -> bool:
    """Return whether the name of a profile is the path of a folder."""
    return name.startswith(("./", "../", "/"))


def load_profile(name: str) -> AgentProfile:
    """Return the profile with a name.

    Raises `InvalidInput` if there is none, with a similar name, and with all problems of its file.
    """
    registered = _registered()
    if name not in registered:
        near = near_names(name, registered)
        known = f"did you mean {near[0]!r}?" if near else f"agents: {', '.join(registered)}"
        raise InvalidInput(
            "cannot find the agent", [Problem(name, f"there is no agent {name!r}; {known}")]
        )
    return _load(name, registered[name])


def find_profiles() -> Mapping[str, AgentProfile]:
    """Return all profiles of labledger and of other packages, sorted by name.

    Raises `InvalidInput` with all their problems.
    """
    profiles: dict[str, AgentProfile] = {}
    problems: list[Problem] = []
    for name, places in _registered().items():
        try:
            profiles[name] = _load(name, places)
        except InvalidInput as error:
            problems += error.problems
    if problems:
        raise InvalidInput("cannot read the agent profiles", problems)
    return profiles


def _registered() -> dict[str, dict[str, Path | EntryPoint]]:
    """Return the places of each profile by package, sorted by the profile's name."""
    registered: dict[str, dict[str, Path | EntryPoint]] = {
        path.parent.name: {plug_ins.OWN_PACKAGE: path.parent}
        for path in _OWN_FOLDER.glob(f"*/{PROFILE}")
    }
    for name, places in plug_ins.registered(ENTRY_POINT_GROUP).items():
        registered.setdefault(name, {}).update(places)
    return dict(sorted(registered.items()))


def _load(name: str, places: Mapping[str, Path | EntryPoint]) -> AgentProfile:
    if len(places) > 1:
        message = f"the packages {' and '.join(sorted(places))} both have an agent profile {name!r}"
        problem = Problem(name, message, hint="uninstall all but one of them")
        raise InvalidInput(f"cannot read the agent profile {name!r}", [problem])
    [(package, place)] = places.items()
    if not isinstance(place, Path):
        place = _loaded_folder(package, place)
    profile = read_profile(place)
    if profile.name != name:
        message = f"found {profile.name!r}, but {package} registers it as {name!r}"
        problem = Problem(str(place / PROFILE), message, field="name")
        raise InvalidInput(f"cannot read {place / PROFILE}", [problem])
    return profile


def _loaded_folder(package: str, entry_point: EntryPoint) -> Path:
    try:
        return Path(entry_point.load())
    except Exception as error:
        message = f"the agent profile of the package {package} failed: {error!r}"
        hint = (
            f"its entry point must be the path of a folder; report it to the authors of {package}"
        )
        problem = Problem(entry_point.value, message, hint=hint)
        raise InvalidInput(
            f"cannot read the agent profile {entry_point.name!r}", [problem]
        ) from error
