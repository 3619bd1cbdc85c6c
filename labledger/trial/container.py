"""The Docker engine: the few calls that trials need, and what its failures mean."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labledger import clock
from labledger.errors import EngineUnavailable, LabLedgerError, NoRoom
from labledger.records import JsonObject

if TYPE_CHECKING:
    from docker import APIClient
    from docker.errors import APIError

_API_TIMEOUT_S = 60
_POLL_S = 0.05
_NOT_FOUND = 404
_SERVER_ERROR = 500
_FULL = "no space left on device"


class ContainerFailed(LabLedgerError):
    """The Docker engine refused something about a container."""


class EngineServerError(ContainerFailed):
    """The Docker engine failed at something that may well succeed the next time."""


class EngineDiskFull(NoRoom):
    """The Docker engine has no room for a container."""


class NoSuchContainer(ContainerFailed):
    """The container is not there."""


class ContainerNameTaken(ContainerFailed):
    """There is a container of that name already."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What the engine knows of a container."""

    container_id: str
    status: str
    """`created`, `running`, `exited`, …"""
    exit_status: int
    out_of_memory: bool
    started_at: str
    finished_at: str
    labels: dict[str, str]
    upper_dir: str | None = None
    """The host's folder of what is not as in the image, where this user may look into it."""

    @property
    def has_started(self) -> bool:
        return not self.started_at.startswith("0001-")

    @property
    def has_ended(self) -> bool:
        return self.status in {"exited", "dead"}


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container in a list of the engine."""

    container_id: str
    name: str
    labels: dict[str, str]


class Engine:
    """A connection to the Docker engine, for one thread."""

    def __init__(self, client: APIClient) -> None:
        self._client = client

    @classmethod
    def connect(cls) -> Engine:
        """Connect as the `docker` command would. Raises `EngineUnavailable`."""
        from docker import APIClient
        from docker.errors import DockerException
        from docker.utils import kwargs_from_env

        settings = kwargs_from_env()
        if "base_url" not in settings and (host := _context_host()):
            settings["base_url"] = host
        try:
            return cls(APIClient(version="auto", timeout=_API_TIMEOUT_S, **settings))
        except DockerException as error:
            raise EngineUnavailable(
                f"no Docker engine answers at {settings.get('base_url', 'the default socket')}: "
                f"{_first_line(error)}",
                hint="start Docker (`scripts/engine` does in a checkout), or set DOCKER_HOST",
            ) from error

    def close(self) -> None:
        self._client.close()

    def info(self) -> JsonObject:
        with _translated("ask the Docker engine about itself"):
            info: JsonObject = self._client.info()
            return info

    def image_id(self, ref: str) -> str | None:
        """The id of a local image, or None where it is not here."""
        from docker.errors import ImageNotFound

        with _translated(f"look for image {ref}"):
            try:
                return str(self._client.inspect_image(ref)["Id"])  # type: ignore[no-untyped-call]
            except ImageNotFound:
                return None

    def image_user(self, image_id: str) -> str | None:
        """The user that an image names, perhaps ""; None where the image is not here."""
        if image_id not in _image_users:
            try:
                with _translated(f"look for image {image_id}"):
                    found = self._client.inspect_image(image_id)  # type: ignore[no-untyped-call]
            except ContainerFailed:
                return None
            _image_users[image_id] = str(found["Config"].get("User") or "")
        return _image_users[image_id]

    def image_is_obtainable(self, ref: str) -> bool:
        """True when a registry offers the image. Downloads nothing."""
        from docker.errors import APIError

        try:
            self._client.inspect_distribution(ref)  # type: ignore[no-untyped-call]
        except APIError:
            return False
        return True

    def pull(self, ref: str) -> None:
        with _translated(f"pull image {ref}"):
            for line in self._client.pull(ref, stream=True, decode=True):
                if "error" in line:
                    raise ContainerFailed(f"could not pull image {ref}: {line['error']}")

    def create(self, name: str, config: JsonObject) -> str:
        """Create a container and return its id. Raises `ContainerFailed`."""
        with _translated(f"create container {name}"):
            created = self._client.create_container_from_config(config, name)  # type: ignore[no-untyped-call]
            return str(created["Id"])

    def start(self, container: str) -> None:
        with _translated(f"start container {container}"):
            self._client.start(container)

    def wait(self, container: str, timeout_s: float) -> int | None:
        """The exit status of a container when it has ended, or None after `timeout_s`.

        Raises `NoSuchContainer` where there is none, and `EngineUnavailable` for every other
        trouble: the container may well go on.
        """
        from docker.errors import APIError, DockerException
        from requests.exceptions import ConnectionError as Disconnected
        from requests.exceptions import ReadTimeout

        with _translated(f"wait for container {container}"):
            try:
                return int(self._client.wait(container, timeout=math.ceil(timeout_s))["StatusCode"])
            except ReadTimeout:
                return None
            except Disconnected as error:
                if "timed out" in str(error).lower():
                    return None
                raise
            except APIError as error:
                if error.status_code != _NOT_FOUND:
                    raise DockerException(_first_line(error)) from error
                raise

    def inspect(self, container: str) -> ContainerState | None:
        try:
            with _translated(f"inspect container {container}"):
                found = self._client.inspect_container(container)
        except NoSuchContainer:
            return None
        state = found["State"]
        return ContainerState(
            container_id=found["Id"],
            status=state["Status"],
            exit_status=int(state["ExitCode"]),
            out_of_memory=bool(state.get("OOMKilled")),
            started_at=state["StartedAt"],
            finished_at=state["FinishedAt"],
            labels=found["Config"]["Labels"] or {},
            upper_dir=_readable_upper_dir(found.get("GraphDriver") or {}),
        )

    def inspect_existing(self, container: str) -> ContainerState:
        """As `inspect`, of a container that must be there. Raises `NoSuchContainer`."""
        state = self.inspect(container)
        if state is None:
            raise NoSuchContainer(f"container {container} was removed while its trial ran")
        return state

    def was_paused(self, container: str) -> bool:
        """True where the engine remembers that somebody paused a container that has ended.

        It remembers its last events alone, 256 of all containers, until it is restarted.
        """
        state = self.inspect(container)
        if state is None or not state.has_ended:
            return False
        since, until = (clock.parse(t).timestamp() for t in (state.started_at, state.finished_at))
        with _translated(f"ask what happened to container {container}"):
            found = self._client.events(  # type: ignore[call-overload]
                since=f"{since - 1:.3f}",
                until=f"{until + 0.001:.3f}",
                filters={"container": container, "event": "pause"},
                decode=True,
            )
            return any(True for _ in found)

    def kill(self, container: str) -> None:
        """End a container at once; one that has ended already is left as it is."""
        try:
            with _translated(f"kill container {container}"):
                self._client.kill(container)
        except ContainerFailed:
            state = self.inspect(container)
            if state is not None and not state.has_ended:
                raise

    def remove(self, container: str) -> None:
        """Remove a container by force; one that is gone already is no error.

        Where somebody else is removing it, returns when that is done.
        """
        from docker.errors import APIError

        with suppress(NoSuchContainer), _translated(f"remove container {container}"):
            try:
                self._client.remove_container(container, force=True, v=True)
            except APIError as error:
                if "is already in progress" not in str(error):
                    raise
                self._await_removal(container)

    def _await_removal(self, container: str) -> None:
        """Return when a container is gone. Asks: to be told, one may come a moment too late."""
        deadline = time.monotonic() + _API_TIMEOUT_S
        while self.inspect(container) is not None:
            if time.monotonic() > deadline:
                raise ContainerFailed(f"container {container} is still being removed")
            time.sleep(_POLL_S)

    def changed_paths(self, container: str) -> Iterator[str]:
        """Each path that is not as in the image, in any order. Raises `ContainerFailed`."""
        from requests.exceptions import ReadTimeout

        with _translated(f"compare container {container} with its image"):
            try:
                found = self._client.diff(container) or ()
            except ReadTimeout as error:
                raise ContainerFailed(
                    f"container {container} was not compared with its image in {_API_TIMEOUT_S} s"
                ) from error
            return (str(change["Path"]) for change in found)

    def containers_with_labels(self, labels: dict[str, str]) -> list[ListedContainer]:
        """Every container, running or not, that carries all `labels`."""
        with _translated("list containers"):
            found = self._client.containers(
                all=True, filters={"label": [f"{key}={value}" for key, value in labels.items()]}
            )
        return [
            ListedContainer(
                entry["Id"], (entry["Names"] or [entry["Id"]])[0].lstrip("/"), entry["Labels"]
            )
            for entry in found
        ]

    def run_probe(
        self,
        image: str,
        script: str,
        labels: dict[str, str],
        user: str | None = None,
        oci_runtime: str | None = None,
    ) -> tuple[int, str]:
        """Run a short shell script in a fresh container without network; status and output."""
        name = f"labledger-probe-{secrets.token_hex(8)}"
        config: JsonObject = {} if user is None else {"User": user}
        config |= {
            "Image": image,
            "Entrypoint": ["sh", "-c", script],
            "Labels": labels,
            "NetworkDisabled": True,
            "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "json-file"}},
        }
        if oci_runtime is not None:
            config["HostConfig"]["Runtime"] = oci_runtime
        try:
            self.create(name, config)
            self.start(name)
            status = self.wait(name, _API_TIMEOUT_S)
            with _translated(f"read what image {image} answered"):
                output = self._client.logs(name).decode("utf-8", "replace")
            return (-1 if status is None else status), output
        finally:
            self.remove(name)


_image_users: dict[str, str] = {}
"""By image id, which says all about an image for ever."""

_thread = threading.local()


def thread_engine() -> Engine:
    """This thread's connection, made when first asked for and then kept."""
    engine: Engine | None = getattr(_thread, "engine", None)
    if engine is None:
        engine = _thread.engine = Engine.connect()
    return engine


def _readable_upper_dir(driver: JsonObject) -> str | None:
    """Where the overlay driver keeps a container's changes, for a user who may look there."""
    place = (driver.get("Data") or {}).get("UpperDir")
    return place if place and os.access(place, os.R_OK | os.X_OK) else None


def _context_host() -> str | None:
    """The address that the user's current Docker context names."""
    from docker.context import ContextAPI

    try:
        context = ContextAPI.get_current_context()
    except Exception:  # An unreadable context leaves the default socket.
        return None
    host: str | None = context.Host if context is not None else None
    return host


@contextmanager
def _translated(action: str) -> Iterator[None]:
    """Turn the Docker library's errors into ours, with what was attempted."""
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException

    try:
        yield
    except NotFound as error:
        kind = NoSuchContainer if "No such container" in str(error) else ContainerFailed
        raise kind(f"could not {action}: {_first_line(error)}") from error
    except APIError as error:
        raise _kind_of(error)(f"could not {action}: {_first_line(error)}") from error
    except (DockerException, RequestException, OSError) as error:
        raise EngineUnavailable(f"could not {action}: {_first_line(error)}") from error


def _kind_of(error: APIError) -> type[LabLedgerError]:
    if "is already in use by container" in str(error):
        return ContainerNameTaken
    if _FULL in str(error).lower():
        return EngineDiskFull
    status = error.status_code
    return EngineServerError if status is not None and status >= _SERVER_ERROR else ContainerFailed


def _first_line(error: Any) -> str:
    text = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return str(text).strip().splitlines()[0][:300]
