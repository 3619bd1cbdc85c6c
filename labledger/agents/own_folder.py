"""A folder with the user's own agent: its files, their digest, and its dependencies.

The folder and its files are part of an experiment, and their digest is in the plan. The files are
copied, and none of them runs on this machine. Packages and repositories come from elsewhere, so
they need the user's permission.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from labledger.agents.profiles import (
    CONSTRAINTS,
    LAUNCH,
    PROFILE,
    AgentProfile,
    PackageSource,
    Registry,
    read_profile,
)
from labledger.agents.registry_clients import ClientFailed, run
from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.files.project_files import open_regular
from labledger.host_programs import find_program

PROGRAM, REPOSITORIES = "program", "git"
"""The folders of an installed agent with the folder's own files, and with the repositories."""
MAX_FILES = 10_000
MAX_BYTES = 1 << 30
SKIPPED = frozenset({"__pycache__", ".git", ".lab"})
"""Folders that are not part of an agent's folder."""


def source_digest(folder: Path) -> str:
    """Return the digest of a folder's files: names, contents, and whether they are executable.

    Raises `InvalidInput` for anything except regular files, such as links, and for too many or too
    large files.
    """
    digest = hashlib.sha256()
    try:
        for path in files_of(folder):
            with open_regular(path)[0] as file:
                is_executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
                content = hashlib.file_digest(file, "sha256").hexdigest()
            name = path.relative_to(folder).as_posix()
            line = json.dumps([name, is_executable, content])
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InvalidInput("the agent's folder", [Problem(str(folder), message)]) from None
    return digest.hexdigest()


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of an agent's folder, in an order that depends only on the names.

    Raises `InvalidInput` in the same cases as `source_digest`.
    """
    count = size = 0
    for current, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted([*names, *(f for f in folders if Path(current, f).is_symlink())]):
            path = Path(current, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                message = "is a link or not a regular file; copy the file into the folder"
                raise InvalidInput("the agent's folder", [Problem(str(path), message)])
            count, size = count + 1, size + status.st_size
            if count > MAX_FILES or size > MAX_BYTES:
                message = f"has more than {MAX_FILES:,} files or {MAX_BYTES >> 20:,} MiB"
                raise InvalidInput("the agent's folder", [Problem(str(folder), message)])
            yield path


def copy_source(profile: AgentProfile, target: Path) -> None:
    """Copy the files of a profile's folder to `target`, a new folder.

    Raises `LabLedgerError` if they have changed since the experiment was read.
    """
    try:
        for path in files_of(profile.folder):
            copy = target / path.relative_to(profile.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with open_regular(path)[0] as file, copy.open("xb") as written:
                shutil.copyfileobj(file, written)
                is_executable = os.fstat(file.fileno()).st_mode & stat.S_IXUSR
            copy.chmod(0o755 if is_executable else 0o644)
        digest = source_digest(target)
    except (InvalidInput, OSError) as error:
        raise _changed(profile) from error
    if digest != profile.source_sha256:
        raise _changed(profile)


def _changed(profile: AgentProfile) -> LabLedgerError:
    return LabLedgerError(
        f"{profile.folder} is gone, or its files have changed since the experiment was read",
        hint="restore the folder, or start a new run",
    )


def fetch_repositories(profile: AgentProfile, tree: Path) -> dict[str, str]:
    """Put the files of a profile's repositories, at their commits, into `tree`.

    Runs no hook, filter or helper of git, and asks for no password. Returns the commits by
    ``git:URL``. Raises `ClientFailed`.
    """
    for repository in profile.source.git:
        git = find_program("git")
        if git is None:
            raise ClientFailed("git is not on the PATH", hint="install git")
        folder = tree / REPOSITORIES / repository.folder
        bare = tree / f".{repository.folder}.git"
        safe = [git, *_GIT_SETTINGS, f"--git-dir={bare}"]
        env = {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
        purpose = f"git fetch {repository.url}"
        run(purpose, [git, *_GIT_SETTINGS, "init", "--quiet", "--bare", str(bare)], env=env)
        fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", repository.url, repository.commit]
        run(purpose, [*safe, *fetch], env=env)
        folder.mkdir(parents=True)
        checkout = ["--work-tree", str(folder), "checkout", "--quiet", repository.commit, "--", "."]
        run(purpose, [*safe, *checkout], env=env)
        shutil.rmtree(bare)
        _refuse_links_out(folder)
    return {f"git:{repository.url}": repository.commit for repository in profile.source.git}


_GIT_SETTINGS = tuple(
    word
    for setting in (
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "core.symlinks=true",
        "credential.helper=",
        "protocol.allow=never",
        "protocol.https.allow=always",
        "transfer.fsckObjects=true",
        "filter.lfs.smudge=",
        "filter.lfs.required=false",
    )
    for word in ("-c", setting)
)


def _refuse_links_out(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ClientFailed(f"{path.relative_to(folder)} of the repository is a link out of it")


def asked_packages(profile: AgentProfile) -> tuple[str, ...]:
    """Return the packages and repositories that an agent needs, in the words of a permission."""
    source = profile.source
    return (
        *([f"{source.package} from {source.registry}"] if source.package else []),
        *(f"{package} from pypi" for package in source.packages),
        *(f"{package} from npm" for package in source.npm),
        *(f"{repository.url} at {repository.commit}" for repository in source.git),
    )


def read_folder(folder: Path) -> AgentProfile:
    """Return the profile in a folder of an experiment, with the digest of all its files.

    Raises `InvalidInput` with the problems of its files.
    """
    # Check the files first: the profile could be a FIFO, or a link to a secret file.
    digest = source_digest(folder)
    return replace(read_profile(folder), source_sha256=digest)


def known_profile(name: str, version: str, folder: str, source_sha256: str | None) -> AgentProfile:
    """Return the profile of a run's agent, whose folder may be missing or changed.

    Such a folder cannot be installed, but an agent that is already installed can be used.
    """
    path = Path(folder)
    try:
        profile = read_folder(path)
    except (InvalidInput, OSError):
        profile = AgentProfile(
            name, "", "", "", version, (), PackageSource(Registry.FOLDER), "", folder=path
        )
    return replace(profile, source_sha256=source_sha256)


def place_program(profile: AgentProfile, tree: Path) -> None:
    """Copy a profile's folder into `tree`, without profile, launcher, constraints and wheels."""
    others = {PROFILE, LAUNCH, CONSTRAINTS, *profile.source.wheels}

    def ignored(folder: str, names: list[str]) -> set[str]:
        inner = Path(folder).relative_to(profile.folder)
        return {name for name in names if (inner / name).as_posix() in others}

    shutil.copytree(profile.folder, tree / PROGRAM, ignore=ignored)
