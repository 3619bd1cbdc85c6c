"""Errors of the Docker engine, translated from errors of the Docker library.

Every error becomes a `LabLedgerError` that says what was attempted. The engine reported a
`ContainerFailed` or a subclass. It did not answer if the error is `EngineUnavailable`. Only
`engine` translates; every package may catch.
"""

from __future__ import annotations

import grp
import os
import pwd
import random
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from labledger import clock
from labledger.errors import DiskFull, EngineUnavailable, LabLedgerError

if TYPE_CHECKING:
    from docker.errors import APIError

_SERVER_ERROR = 500
_NAME_TAKEN = re.compile("container name .* is already in use by ")
_NO_PROGRAM = re.compile(
    "OCI permission denied|OCI runtime attempted to invoke a command that was not found"
)
"""Podman adds this if the program of a container's start is missing or cannot run."""
_PROCESS_ENDED = re.compile(r"/proc/\d+/\w+: no such process")
_DISK_FULL_MESSAGE = "no space left on device"
_ASK_FOR_ACCESS = "ask the engine's administrator for access, or set DOCKER_HOST to another one"


class ContainerFailed(LabLedgerError):
    """The Docker engine refused an operation on a container."""


class EngineServerError(ContainerFailed):
    """The Docker engine had an internal error (HTTP 5xx). The operation may be retried."""


class EngineDiskFull(DiskFull):
    """The disk of the Docker engine is full."""


class NoSuchContainer(ContainerFailed):
    """The container does not exist."""


class ProgramMissing(ContainerFailed):
    """Podman could not start a container, because its program is missing or not executable.

    Docker refuses such a start with a `ContainerFailed`, and records an exit status.
    """


class ProcessEnded(EngineServerError):
    """The engine listed no process of a container, because one or all had just ended."""


class ContainerNameTaken(ContainerFailed):
    """Another container has the requested name."""


@contextmanager
def translating_errors(action: str) -> Iterator[None]:
    """Raise `LabLedgerError`s for errors of the Docker library.

    Their messages begin with "could not" and `action`.
    """
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException

    try:
        yield
    except NotFound as error:
        error_class = NoSuchContainer if _names_no_container(error) else ContainerFailed
        raise error_class(f"could not {action}: {first_line(error)}") from error
    except APIError as error:
        raise _error_class(error)(f"could not {action}: {first_line(error)}") from error
    except (DockerException, RequestException, OSError) as error:
        raise EngineUnavailable(f"could not {action}: {first_line(error)}") from error


def _error_class(error: APIError) -> type[LabLedgerError]:
    if _NAME_TAKEN.search(str(error)):
        return ContainerNameTaken
    if _DISK_FULL_MESSAGE in str(error).lower():
        return EngineDiskFull
    if _NO_PROGRAM.search(str(error)):
        return ProgramMissing
    status = error.status_code
    if status == _SERVER_ERROR and _names_no_container(error):
        return NoSuchContainer  # Podman answers so while it removes the container.
    if _PROCESS_ENDED.search(str(error)):
        return ProcessEnded
    return EngineServerError if status is not None and status >= _SERVER_ERROR else ContainerFailed


def _names_no_container(error: APIError) -> bool:
    """Return whether the engine says, in any letter case, that a container does not exist."""
    return "no such container" in str(error).lower()


def first_line(error: Any) -> str:
    """Return the engine's explanation, or the system's reason, or else the error's first line."""
    explanation = getattr(error, "explanation", None) or _system_reason(error)
    text = explanation or str(error) or type(error).__name__
    return str(text).strip().splitlines()[0][:300]


def _system_reason(error: Any) -> str | None:
    """Return why the system refused a connection, if the HTTP library's error has the reason.

    The library's own text is a tuple, or a class name with all arguments.
    """
    cause = error
    while isinstance(cause, BaseException):
        reason = getattr(cause, "strerror", None)
        if cause is not error and reason and str(reason) in str(error):
            return str(reason)
        cause = cause.__cause__ or cause.__context__
    return None


def refused_socket_error(address: str) -> EngineUnavailable | None:
    """Return the error to raise if this user may not use the engine's socket, else None.

    The engine may be running in that case, so starting one would not help.
    """
    scheme, _, path = address.partition("://")
    if not scheme.endswith("unix") or os.access(path, os.R_OK | os.W_OK):
        return None
    user = _name_of(os.geteuid(), pwd.getpwuid)
    try:
        status = Path(path).stat()
    except PermissionError:
        return EngineUnavailable(
            f"user {user} may not look into the folder of the Docker engine's socket, {path}",
            hint=_ASK_FOR_ACCESS,
        )
    except OSError:
        return None
    owner, group = _name_of(status.st_uid, pwd.getpwuid), _name_of(status.st_gid, grp.getgrgid)
    mode = stat.S_IMODE(status.st_mode)
    return EngineUnavailable(
        f"user {user} may not use the Docker engine's socket, {path}: it belongs to user {owner} "
        f"and group {group}, with mode {mode:o}",
        hint=_way_in(user, group, status.st_gid, mode),
    )


def _way_in(user: str, group: str, gid: int, mode: int) -> str:
    """Return how a user can get access to a socket of a group."""
    if gid == 0 or mode & 0o060 != 0o060:
        return _ASK_FOR_ACCESS
    with suppress(KeyError):
        if user in grp.getgrgid(gid).gr_mem:
            return f"{user} was added to group {group}: log in again for that to take effect"
    return (
        f"add the user to the group, `sudo usermod -aG {group} {user}`, and log in again; members "
        "of this group can do what root can"
    )


def _name_of(number: int, look_up: Callable[[int], Any]) -> str:
    """Return the name of a user or group, or its number if it has no name."""
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


BACKOFF_S = (0.2, 0.4, 0.8, 1.6)
"""Seconds to wait before each retry."""

T = TypeVar("T")


def retry_engine_errors(action: Callable[[], T], retry: Callable[[], T] | None = None) -> T:
    """Call `action`. After each `EngineServerError`, wait and call `retry`, by default `action`.

    Raises the error of the last call.
    """
    for delay_s in BACKOFF_S:
        try:
            return action()
        except EngineServerError:
            clock.sleep(delay_s * random.uniform(0.75, 1.25))  # noqa: S311
            action = retry or action
    return action()
