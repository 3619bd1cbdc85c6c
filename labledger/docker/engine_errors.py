"""Errors of the Docker engine, and their translation from those of the Docker library.

Every error becomes a `LabLedgerError` that says what was attempted: `ContainerFailed` and its
subclasses for an error that the engine reports, `EngineUnavailable` if it does not answer, and
`EngineDiskFull`. Only `engine` translates; everyone catches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from labledger.errors import DiskFull, EngineUnavailable, LabLedgerError

if TYPE_CHECKING:
    from docker.errors import APIError

_SERVER_ERROR = 500
_NAME_TAKEN = re.compile("container name .* is already in use by ")
_DISK_FULL_MESSAGE = "no space left on device"


class ContainerFailed(LabLedgerError):
    """The Docker engine refused an operation on a container."""


class EngineServerError(ContainerFailed):
    """The Docker engine had an internal error (HTTP 5xx). The operation may be retried."""


class EngineDiskFull(DiskFull):
    """The disk of the Docker engine is full."""


class NoSuchContainer(ContainerFailed):
    """The container does not exist."""


class ContainerNameTaken(ContainerFailed):
    """Another container has the requested name."""


@contextmanager
def translating_errors(action: str) -> Iterator[None]:
    """Raise `LabLedgerError`s for errors of the Docker library.

    `action` says what was attempted: their messages begin with "could not" and `action`.
    """
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException

    try:
        yield
    except NotFound as error:
        # Docker and Podman write it with different letters.
        missing = "no such container" in str(error).lower()
        error_class = NoSuchContainer if missing else ContainerFailed
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
    status = error.status_code
    return EngineServerError if status is not None and status >= _SERVER_ERROR else ContainerFailed


def first_line(error: Any) -> str:
    text = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return str(text).strip().splitlines()[0][:300]
