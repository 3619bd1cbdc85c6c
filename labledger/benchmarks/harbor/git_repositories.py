"""Git repositories at fixed commits, in the user's cache folder.

Each commit of a repository has a folder of its own. It is cloned under another name and renamed
when it is whole, so that a folder with this name is complete. A folder in which somebody has
changed a file is refused. Git runs without asking for passwords and without hooks.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

from labledger.errors import InvalidInput, Problem
from labledger.storage import user_cache

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CLONE_TIMEOUT_S = 3600


class Clones:
    """Repositories at commits, each cloned and checked at most once by this object."""

    def __init__(self) -> None:
        self._folders: dict[tuple[str, str], Path | InvalidInput] = {}

    def checked_out(self, url: str, commit: str) -> Path:
        """Return the folder with the files of a repository. Raises `InvalidInput`, every time."""
        key = (url, commit)
        if key not in self._folders:
            try:
                self._folders[key] = _checked_out(url, commit)
            except InvalidInput as error:
                self._folders[key] = error
        folder = self._folders[key]
        if isinstance(folder, InvalidInput):
            raise folder
        return folder


def _checked_out(url: str, commit: str) -> Path:
    """Return the folder with the files of a repository at a commit, cloned if it is not there.

    Raises `InvalidInput` if the commit is not a full one or cannot be had.
    """
    where = f"{url}@{commit}"
    if not _COMMIT.fullmatch(commit):
        message = f"found commit {commit!r}; expected all its 40 hexadecimal digits"
        raise _problem(where, message, "a branch or tag may name other content tomorrow")
    if url.startswith("-") or "::" in url or not url.isprintable():
        raise _problem(where, "is not the address of a Git repository")
    cache = user_cache.folder()
    if cache is None:
        raise _problem(where, "there is no cache folder to clone to", "set XDG_CACHE_HOME")
    name = f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{commit}"
    target = cache / "git" / name
    try:
        if not target.is_dir():
            _publish(url, commit, target)
    except OSError as error:
        raise _problem(where, f"cannot be stored in {target}: {error.strerror}") from error
    _require_unchanged(where, target, commit)
    return target


def _publish(url: str, commit: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        _clone(url, commit, unfinished)
        try:
            unfinished.rename(target)
        except OSError:
            # Another process has cloned the same commit meanwhile.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _clone(url: str, commit: str, folder: Path) -> None:
    """Fetch one commit, or the whole repository if its server hands out no single commits."""
    where = f"{url}@{commit}"
    _git(where, "init", "--quiet", str(folder))
    _git(where, "-C", str(folder), "remote", "add", "--", "origin", url)
    try:
        _git(where, "-C", str(folder), "fetch", "--quiet", "--depth=1", "origin", commit)
    except InvalidInput:
        _git(where, "-C", str(folder), "fetch", "--quiet", "--tags", "origin")
    _git(where, "-C", str(folder), "checkout", "--quiet", "--detach", commit)


def _require_unchanged(where: str, folder: Path, commit: str) -> None:
    head = _git(where, "-C", str(folder), "rev-parse", "HEAD").strip()
    status = _git(where, "-C", str(folder), "status", "--porcelain", "--ignored")
    if head != commit or status:
        changed = status.splitlines()[0][3:] if status else "HEAD"
        hint = f"remove {folder} to have it cloned anew"
        raise _problem(where, f"{changed} was changed in {folder}", hint)


def _git(where: str, *words: str) -> str:
    """Return the output of a git command. Raises `InvalidInput` with its last line of errors."""
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false", *words]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    try:
        ended = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CLONE_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise _problem(where, "git is not installed", "install git") from error
    except subprocess.TimeoutExpired as error:
        raise _problem(where, f"git took longer than {_CLONE_TIMEOUT_S} seconds") from error
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
        raise _problem(where, f"git {words[-1]}: {lines[-1]}")
    return ended.stdout


def _problem(where: str, message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the repository cannot be used", [Problem(where, message, hint=hint)])
