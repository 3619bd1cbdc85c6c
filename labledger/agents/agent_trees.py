"""Folders of installed agents: digests, manifests, tars, and the check before they are used.

An entry of the cache is a folder with `manifest.json` and `tree`, which containers mount. It gets
its name when it is complete. The name has a digest of all inputs, so that a changed profile or
another Python gives another entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from labledger.agents.cache_ownership import is_own_entry
from labledger.errors import LabLedgerError
from labledger.files.durable_files import file_pieces, write_file
from labledger.files.fingerprints import fingerprint
from labledger.files.tars import TarEntry, content_of, each_member, open_stream, tar_chunks
from labledger.files.untrusted_files import is_safe_name, link_stays_inside, parents
from labledger.records.canonical_json import dump_bytes
from labledger.records.json_codec import Section

MANIFEST, TREE = "manifest.json", "tree"
SCHEMA = "labledger.agent_tree.v1"
"""The `schema_version` of a manifest."""


@dataclass(frozen=True, slots=True)
class InstalledAgent(Section):
    """The manifest of an installed agent. The agent's trials have it as evidence."""

    name: str
    version: str
    machine: str
    """The architecture, as `uname -m` prints it."""
    runtime: str
    """The runtime: `native`, or for example ``node 24.19.0`` or ``python 3.12.4``."""
    packages: Mapping[str, str]
    """The digest of each package, as its registry states it, such as
    ``pypi:NAME==VERSION`` with ``sha256:…``."""
    tree_sha256: str
    """The digest of all files: names, contents, links and whether they are executable."""
    size: int
    """The size of all files, in bytes."""
    schema_version: str = SCHEMA
    folder: Path = field(default=Path(), compare=False)
    """The folder that containers mount at `launch.folder_of(name)`. Not in the manifest."""


def walk(tree: Path) -> Iterator[Path]:
    """Yield everything in a folder, in an order that depends only on the names."""
    for folder, folders, files in os.walk(tree):
        folders.sort()
        yield from (Path(folder, name) for name in sorted([*folders, *files]))


def tree_digest(tree: Path) -> tuple[str, int]:
    """Return the digest of a folder's files, and their size in bytes. Raises `OSError`."""
    digest = hashlib.sha256()
    size = 0
    for path in walk(tree):
        status = path.lstat()
        kind, content = "folder", ""
        if stat.S_ISLNK(status.st_mode):
            kind, content = "link", str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            kind = "program" if status.st_mode & 0o111 else "file"
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            size += status.st_size
        elif not stat.S_ISDIR(status.st_mode):
            kind = "other"
        line = json.dumps([kind, os.fsdecode(path.relative_to(tree)), content])
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest(), size


_digested: dict[tuple[Path, str], tuple[str, int]] = {}
"""Results of `tree_digest` by folder and fingerprint, so that no state is read twice."""


def known_digest(tree: Path) -> tuple[str, int]:
    """Return `tree_digest`, or its earlier result if nothing was touched. Raises `OSError`."""
    state = fingerprint([tree], [tree.parent])
    key = tree, state.digest
    if key in _digested:
        return _digested[key]
    digest = tree_digest(tree)
    if state.is_settled and fingerprint([tree], [tree.parent]) == state:
        _digested[key] = digest
    return digest


def read_entry(entry: Path) -> InstalledAgent | None:
    """Return the agent in an entry's manifest; None if the manifest is missing or unreadable."""
    try:
        stored = InstalledAgent.from_json(json.loads((entry / MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return None if stored.schema_version != SCHEMA else replace(stored, folder=entry / TREE)


def checked_entry(entry: Path) -> InstalledAgent | None:
    """Return the agent of an entry if its files are unchanged, else None.

    Also returns None if another user could change the files.
    """
    stored = read_entry(entry)
    try:
        if stored is None or not is_own_entry(entry, stored.folder):
            return None
        if known_digest(stored.folder) != (stored.tree_sha256, stored.size):
            return None
    except OSError:
        return None
    return stored


def tar_of_tree(tree: Path) -> Iterator[bytes]:
    """Yield a deterministic tar of a folder's files. Raises `OSError`."""
    return tar_chunks(_members(tree))


def _members(tree: Path) -> Iterator[tuple[TarEntry, Iterator[bytes]]]:
    for path in walk(tree):
        status, relative = path.lstat(), str(path.relative_to(tree))
        if stat.S_ISLNK(status.st_mode):
            yield TarEntry(relative, tarfile.SYMTYPE, target=str(path.readlink())), iter(())
        elif stat.S_ISREG(status.st_mode):
            is_program = status.st_mode & 0o111 != 0
            yield TarEntry(relative, tarfile.REGTYPE, status.st_size, is_program), file_pieces(path)
        elif stat.S_ISDIR(status.st_mode):
            yield TarEntry(relative, tarfile.DIRTYPE), iter(())


def unpack_tree(tar: Path, agent: InstalledAgent, entry: Path) -> InstalledAgent:
    """Make an entry from a tar of an agent's files, and return the agent in it.

    Replaces an earlier entry of the same name. Raises `LabLedgerError` if the files do not match
    the agent's digest, and `OSError`.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{entry.name}.new-", dir=entry.parent))
    try:
        folder.chmod(0o755)
        (folder / TREE).mkdir(mode=0o755)
        try:
            _unpack(tar, folder / TREE)
        except (tarfile.TarError, ValueError, EOFError) as error:
            raise LabLedgerError(f"the files of {agent.name} cannot be read: {error}") from error
        if tree_digest(folder / TREE) != (agent.tree_sha256, agent.size):
            raise LabLedgerError(
                f"the files of {agent.name}@{agent.version} are not those that were installed"
            )
        write_file(folder / MANIFEST, dump_bytes(agent.as_json()))
        shutil.rmtree(entry, ignore_errors=True)
        folder.rename(entry)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return replace(agent, folder=entry / TREE)


def _unpack(tar: Path, tree: Path) -> None:
    """Unpack a tar from `tar_of_tree`. Raises `ValueError` for unsafe names and links."""
    links: dict[str, str] = {}
    with tar.open("rb") as stream, open_stream(stream) as archive:
        for member in each_member(archive):
            if not is_safe_name(member.name) or not links.keys().isdisjoint(parents(member.name)):
                raise ValueError(f"a file has the name {member.name!r}")
            path = tree / member.name
            if member.isdir():
                path.mkdir()
                path.chmod(0o755)
            elif member.issym():
                if not link_stays_inside(member.name, member.linkname):
                    raise ValueError(f"{member.name!r} is a link that leads out")
                # Created last, so that nothing is written through a link.
                links[member.name] = member.linkname
            elif member.isreg():
                with path.open("xb") as file:
                    file.writelines(content_of(archive, member))
                path.chmod(0o755 if member.mode & 0o111 else 0o644)
            else:
                raise ValueError(f"{member.name!r} is neither a file nor a folder")
    for name, target in links.items():
        (tree / name).symlink_to(target)
