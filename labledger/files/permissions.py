"""Store which actions of other people's files the user has allowed, in the user's own settings.

An experiment, an imported run or a lab folder may ask for an action, such as a command or a secret.
A `Permission` names exactly what would happen, and its digest is stored. Any difference needs a new
one. `LABLEDGER_ALLOW` allows digests.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from labledger import clock
from labledger.errors import (
    InvalidInput,
    LabLedgerError,
    MalformedJson,
    PermissionNeeded,
    Problem,
)
from labledger.files.durable_files import make_folder, set_aside, write_file
from labledger.files.replaceable_paths import replaceable_at
from labledger.records import JsonObject, canonical_json
from labledger.records.json_codec import JsonForm
from labledger.text.words import counted

VARIABLE = "LABLEDGER_ALLOW"
SCHEMA = "labledger.permissions.v1"
"""The `schema_version` of the stored permissions."""
FILE = "permissions.json"
MAX_BYTES = 16 << 20
"""The most bytes of a permissions file that are read."""
_DIGITS = frozenset("0123456789abcdef")
_SHORTEST_PREFIX = 8


@dataclass(frozen=True)
class Permission(JsonForm):
    """One action that the user can allow."""

    kind: str
    """The kind of action, such as `lab_folder`."""
    subject: Mapping[str, str | tuple[str, ...]]
    """The exact action, as members that the digest covers."""
    sentence: str
    """The action in plain words, for the user. It begins with a verb."""
    where: str = ""
    """The source of the request, such as the name of a provider. Not part of the digest."""

    _JSON = ("digest", "kind", "subject", "sentence")

    @cached_property
    def digest(self) -> str:
        """The SHA-256 (hex) of kind and subject."""
        return canonical_json.digest({"kind": self.kind, "subject": _plain(self.subject)})


_LAB_FOLDER = "lab_folder"
_MARK = "folder-mark"
"""The file of a lab folder with random digits, which no other folder has."""
_MARK_BYTES = 16


def of_lab_folder(folder: Path) -> Permission:
    """Return the permission that lets a lab folder's settings and receivers act.

    It covers this folder with its owner and its mark, but no copy of it. Raises `OSError`.
    """
    real = folder.resolve(strict=True)
    status = real.stat()
    subject = {
        "path": str(real),
        "inode": str(status.st_ino),
        "owner": str(status.st_uid),
        "mark": _mark_of(real),
    }
    sentence = f"let the settings and the receivers of notifications of the lab {real} act"
    if status.st_uid != os.geteuid():
        sentence += f", which the user with the id {status.st_uid} owns and can change at any time"
    return Permission(_LAB_FOLDER, subject, sentence, str(folder))


def mark_lab_folder(folder: Path) -> None:
    """Give a lab folder a mark, unless it has one. Raises `OSError`."""
    if not _mark_of(folder):
        write_file(folder / _MARK, secrets.token_hex(_MARK_BYTES).encode())


def forget_lab_folder(folder: Path) -> None:
    """Remove the user's trust from a lab folder by replacing its mark. Raises `OSError`."""
    mark = folder / _MARK
    if os.path.lexists(mark):
        set_aside(mark)
        write_file(mark, secrets.token_hex(_MARK_BYTES).encode())


def _mark_of(folder: Path) -> str:
    """Return the mark of a lab folder; empty if it has none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(folder / _MARK, flags), "rb") as file:
            return file.read(2 * _MARK_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def is_of_lost_folder(allowed: AllowedPermission) -> bool:
    """Return whether a permission covers a lab folder that no longer exists."""
    subject = allowed.document.get("subject", {})
    is_of_folder = allowed.document.get("kind") == _LAB_FOLDER
    return is_of_folder and not os.path.lexists(str(subject.get("path")))


@dataclass(frozen=True)
class AllowedPermission(JsonForm):
    """A stored permission."""

    digest: str
    sentence: str
    allowed_at: str
    """When it was allowed, in UTC."""
    document: JsonObject = field(default_factory=dict)
    """Kind and subject; empty if it was allowed only by its digest."""


@dataclass(frozen=True, slots=True)
class PermissionStore:
    """The file with one user's permissions.

    It is used only if this user owns it and other users cannot write to it.
    """

    path: Path

    @classmethod
    def of_user(cls) -> Self:
        """Return the store in this user's settings, whether it exists or not.

        Raises `LabLedgerError` if this user has no home folder.
        """
        # A relative path would make the store depend on the working directory.
        configured = Path(os.environ.get("XDG_CONFIG_HOME") or "")
        try:
            home = Path.home()
        except RuntimeError:
            home = Path()
        top = configured if configured.is_absolute() else home / ".config"
        if not top.is_absolute():
            raise LabLedgerError(
                "this user has no home folder that could hold permissions",
                hint="set XDG_CONFIG_HOME or HOME to an absolute path, or allow digests by "
                f"{VARIABLE}",
            )
        return cls(top / "labledger" / FILE)

    def read(self) -> Mapping[str, AllowedPermission]:
        """Return the allowed permissions by digest.

        Raises `LabLedgerError` for a damaged file, and for a file that another user owns or can
        write. Such a file is not ignored.
        """
        try:
            content = self._read_safely()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refused(f"it cannot be read: {error.strerror}") from None
        return {permission.digest: permission for permission in self._parsed(content)}

    def add(
        self,
        permissions: Iterable[Permission],
        digests: Iterable[str] = (),
        *,
        forget: Callable[[AllowedPermission], bool] = lambda _: False,
    ) -> None:
        """Allow permissions, and digests without a description.

        Removes the permissions for which `forget` returns True. Raises `LabLedgerError`.
        """
        now = clock.utc_now()
        new = [
            AllowedPermission(
                permission.digest,
                permission.sentence,
                now,
                {"kind": permission.kind, "subject": _plain(permission.subject)},
            )
            for permission in permissions
        ]
        new += [AllowedPermission(digest, "allowed by its digest", now) for digest in digests]
        with self._changing() as allowed:
            for permission in [permission for permission in allowed.values() if forget(permission)]:
                del allowed[permission.digest]
            for permission in new:
                allowed.setdefault(permission.digest, permission)

    def remove(self, digests: Iterable[str]) -> tuple[AllowedPermission, ...]:
        """Revoke permissions, and return them. Digests may be shortened to 8 digits.

        If a digest is unknown or not unique, raises `InvalidInput` and revokes nothing.
        """
        with self._changing() as allowed:
            named = [_named(digest, allowed) for digest in digests]
            return tuple(allowed.pop(digest) for digest in dict.fromkeys(named))

    @contextmanager
    def _changing(self) -> Iterator[dict[str, AllowedPermission]]:
        """Yield the allowed permissions, and store them when the block ends.

        Other processes wait.
        """
        folder = self.path.parent
        try:
            # Check before creating a folder that would be refused later, and before closing it,
            # which would hide that other users could write to it.
            self._check_folder(must_exist=False)
            make_folder(folder)
            folder.chmod(0o700)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            allowed = dict(self.read())
            yield allowed
            write_file(self.path, _document(allowed.values()))
        except OSError as error:
            raise self._unwritable(error) from None
        finally:
            os.close(descriptor)

    def _read_safely(self) -> bytes:
        self._check_folder()
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise self._refused("it is not a regular file")
            self._check_owner(status, "it")
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise self._refused(f"it is larger than {MAX_BYTES >> 20} MiB")
        return content

    def _check_folder(self, *, must_exist: bool = True) -> None:
        """Raise `LabLedgerError` if other users can replace the store through a folder above it."""
        folder = self.path.parent
        if must_exist or folder.exists():
            self._check_owner(folder.stat(), "its folder")
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if (problem := replaceable_at(nearest / FILE)) is not None:
            raise self._refused(problem)

    def _check_owner(self, status: os.stat_result, what: str) -> None:
        if status.st_uid != os.geteuid():
            raise self._refused(f"{what} belongs to the user with the id {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise self._refused(f"other users can write to {what}")

    def _parsed(self, content: bytes) -> Iterator[AllowedPermission]:
        try:
            document = canonical_json.loads(content)
        except MalformedJson as error:
            raise self._refused(f"it {error.message}") from None
        version = document.get("schema_version") if isinstance(document, dict) else None
        if version != SCHEMA:
            raise self._refused(f"its schema_version is not {SCHEMA}")
        entries = document.get("permissions")
        for entry in entries if isinstance(entries, list) else ():
            match entry:
                case {"digest": str(digest), "sentence": str(sentence), "allowed_at": str(at)}:
                    yield AllowedPermission(digest, sentence, at, entry.get("document", {}))
                case _:
                    raise self._refused("it holds an entry that is not a permission")

    def _refused(self, why: str) -> LabLedgerError:
        return LabLedgerError(
            f"the permissions in {self.path} are not used: {why}",
            hint="check the file and which users could write it; then correct it, or delete it and "
            "allow again what you need",
        )

    def _unwritable(self, error: OSError) -> LabLedgerError:
        hint = f"allow digests by {VARIABLE} where no file can be written"
        return LabLedgerError(f"could not write {self.path}: {error.strerror}", hint=hint)


def _plain(subject: Mapping[str, str | tuple[str, ...]]) -> JsonObject:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in subject.items()
    }


def _document(allowed: Iterable[AllowedPermission]) -> bytes:
    entries = [
        permission.as_json()
        for permission in sorted(allowed, key=lambda permission: permission.digest)
    ]
    document = {"schema_version": SCHEMA, "permissions": entries}
    return json.dumps(document, indent=1).encode() + b"\n"


def _named(digest: str, allowed: Mapping[str, AllowedPermission]) -> str:
    matches = [candidate for candidate in allowed if candidate.startswith(digest)]
    if len(digest) < _SHORTEST_PREFIX or len(matches) != 1:
        message = f"found {digest!r}, which begins {counted(len(matches), 'allowed digest')}"
        hint = "`labledger allow --list` shows them"
        raise InvalidInput("the permission", [Problem("DIGEST", message, hint=hint)])
    return matches[0]


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a complete digest."""
    return len(text) == 64 and set(text) <= _DIGITS


def allowed_by_variable(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the digests in `LABLEDGER_ALLOW`. Raises `InvalidInput` for other words."""
    words = environment.get(VARIABLE, "").replace(",", " ").split()
    wrong = [word for word in words if not is_digest(word)]
    if wrong:
        message = f"found {wrong[0][:80]!r}; expected digests of 64 digits with commas between them"
        raise InvalidInput("the permissions given", [Problem(f"${VARIABLE}", message)])
    return frozenset(words)


def allowed_digests() -> frozenset[str]:
    """Return the digests of everything that the user has allowed.

    Raises `LabLedgerError` if the stored permissions cannot be read safely.
    """
    return allowed_by_variable() | PermissionStore.of_user().read().keys()


def missing(permissions: Iterable[Permission]) -> tuple[Permission, ...]:
    """Return the permissions that the user has not allowed, each once.

    Raises `LabLedgerError` if the stored permissions cannot be read safely.
    """
    asked = {permission.digest: permission for permission in permissions}
    open_digests = asked.keys() - allowed_by_variable() if asked else set()
    if open_digests:
        open_digests -= PermissionStore.of_user().read().keys()
    return tuple(permission for digest, permission in asked.items() if digest in open_digests)


def require(permissions: Iterable[Permission], name: str) -> None:
    """Raise one `PermissionNeeded` for all permissions that the user has not given.

    Call this once with everything that the code is about to do, so that the user is asked once.
    `name` is the argument for `labledger allow`: a path, or the id of a run.
    """
    needed = missing(permissions)
    if needed:
        raise refusal(needed, name)


def refusal(needed: Sequence[Permission], name: str, *, by_name: bool = True) -> PermissionNeeded:
    """Return the error that lists the missing permissions, and how to allow them.

    Without `by_name`, `labledger allow` does not accept the name, and the user allows the digests.
    """
    problems = [
        Problem(permission.where or name, f"it would {permission.sentence}")
        for permission in needed
    ]
    subject = f"{name} needs your permission"
    names = [name] if by_name else [permission.digest for permission in needed]
    return PermissionNeeded(subject, problems, hint=hint_for(needed, *names), needed=tuple(needed))


def hint_for(needed: Sequence[Permission], *names: str) -> str:
    """Return how to allow the needed permissions. `names` are arguments of `labledger allow`."""
    digests = ",".join(permission.digest for permission in needed)
    return (
        f"if you trust it, allow exactly this: `labledger allow {shlex.join(names)}`; where "
        f"nothing can be asked, such as in CI, set {VARIABLE}={digests}"
    )
