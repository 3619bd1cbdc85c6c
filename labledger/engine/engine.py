"""Client of the Docker engine: the calls that trials need, with errors that say what to do.

`Engine` wraps one connection of the Docker library. Two threads must not use it at the same time:
code that starts threads owns an `EnginePool`. Every error of the library becomes an error of
`engine_errors`.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, LifoQueue
from typing import TYPE_CHECKING, Self

from labledger import clock
from labledger.engine.docker_config import (
    engine_settings,
    reading_credentials,
    require_credentials_file,
)
from labledger.engine.engine_errors import (
    ContainerFailed,
    NoSuchContainer,
    ProcessEnded,
    first_line,
    refused_socket_error,
    translating_errors,
)
from labledger.engine.engine_facts import (
    ContainerState,
    is_podman,
    label_filter,
    seconds_of,
    with_read_only_kernel_files,
)
from labledger.errors import EngineUnavailable
from labledger.records import JsonObject

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response


API_TIMEOUT_S = 60
"""The default time limit for the engine's answer to a call, in seconds."""
_POLL_S = 0.05
_EVENT_S = 1.0
"""How long an event of the engine may arrive after the end of a container, in seconds."""
_KILLED = 137
"""The exit status of a container whose first process got SIGKILL."""
_LISTINGS = 10
"""How often to ask Podman for processes. If one ends every 20 ms, one answer in 40 is an error."""
_DEFAULT_SOCKET = "/var/run/docker.sock"
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """An entry of the engine's list of containers."""

    container_id: str
    name: str
    labels: dict[str, str]
    created_at: float = 0.0
    """Seconds since 1970, or 0 if unknown."""

    @classmethod
    def of(cls, entry: JsonObject) -> Self:
        name = (entry["Names"] or [entry["Id"]])[0].lstrip("/")
        return cls(entry["Id"], name, entry["Labels"], seconds_of(entry.get("Created")))


class Engine:
    """A connection to the Docker engine, for one thread at a time.

    It connects at the first call, so it can be created before an engine is needed. `timeout_s` is
    how long a call waits for an answer, in seconds.
    """

    def __init__(self, *, timeout_s: int = API_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._connection: APIClient | None = None
        self._image_configs: dict[str, JsonObject] = {}
        """By image id. An entry never becomes stale, because an id names immutable content."""
        self._is_podman: bool | None = None

    def connect(self) -> Self:
        """Connect to the engine that the `docker` command would use. Raises `EngineUnavailable`."""
        self._connection = self._client
        return self

    @property
    def _client(self) -> APIClient:
        connection = self._connection
        if connection is None:
            connection = self._connection = _connect(self._timeout_s)
        return connection

    @contextmanager
    def api(self, action: str) -> Iterator[APIClient]:
        """Provide the library's client. Its errors are raised as "could not `action`".

        Every `OSError` of the body counts as an error of the connection.
        """
        with translating_errors(action):
            yield self._client

    def close(self) -> None:
        """Close the connection. The next call connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def info(self) -> JsonObject:
        with translating_errors("read the Docker engine's settings"):
            info: JsonObject = self._client.info()
            return info

    def image_id(self, ref: str) -> str | None:
        """Return the id of a local image, or None if the engine does not have it."""
        from docker.errors import ImageNotFound

        with translating_errors(f"inspect image {ref}"):
            try:
                return str(self._client.inspect_image(ref)["Id"])  # type: ignore[no-untyped-call]
            except ImageNotFound:
                return None

    def image_user(self, image_id: str) -> str | None:
        """Return the user that an image sets (possibly ""), or None if the image does not exist."""
        config = self.image_config(image_id)
        return None if config is None else str(config.get("User") or "")

    def image_config(self, image_id: str) -> JsonObject | None:
        """Return the configuration of an image, or None if it does not exist."""
        if image_id not in self._image_configs:
            try:
                with translating_errors(f"inspect image {image_id}"):
                    image = self._client.inspect_image(image_id)  # type: ignore[no-untyped-call]
            except ContainerFailed:
                return None
            self._image_configs[image_id] = image.get("Config") or {}
        return self._image_configs[image_id]

    def image_is_obtainable(self, ref: str) -> bool:
        """Return whether a registry offers the image. Downloads nothing.

        Raises `RegistryCredentialsFailed` if the user's settings name unreadable credentials.
        """
        action = f"ask a registry for image {ref}"
        try:
            with translating_errors(action), reading_credentials(action):
                self._client.inspect_distribution(ref)  # type: ignore[no-untyped-call]
        except ContainerFailed:
            return False
        return True

    def pull(self, ref: str) -> None:
        action = f"pull image {ref}"
        with translating_errors(action):
            with reading_credentials(action):
                lines = self._client.pull(ref, stream=True, decode=True)
            for line in lines:
                if "error" in line:
                    raise ContainerFailed(f"could not pull image {ref}: {line['error']}")

    def create(self, name: str, config: JsonObject) -> str:
        """Create a container and return its id. Raises `ContainerFailed`.

        The container cannot change the kernel's files in /proc, which all containers share.
        """
        config = with_read_only_kernel_files(config)
        with translating_errors(f"create container {name}"):
            created = self._client.create_container_from_config(config, name)  # type: ignore[no-untyped-call]
            return str(created["Id"])

    def start(self, container: str) -> None:
        with translating_errors(f"start container {container}"):
            self._client.start(container)

    def wait(self, container: str, timeout_s: float) -> int | None:
        """Wait for a container to end. Return its exit status, or None after `timeout_s` seconds.

        Raises `NoSuchContainer`. Raises `EngineUnavailable` for every other error; the container
        may then still be running.
        """
        from docker.errors import APIError, DockerException
        from requests.exceptions import ConnectionError as Disconnected
        from requests.exceptions import ReadTimeout

        with translating_errors(f"wait for container {container}"):
            try:
                return int(self._client.wait(container, timeout=math.ceil(timeout_s))["StatusCode"])
            except ReadTimeout:
                return None
            except Disconnected as error:
                if "timed out" in str(error).lower():
                    return None
                raise
            except APIError as error:
                if error.status_code != NOT_FOUND:
                    raise DockerException(first_line(error)) from error
                raise

    def inspect(self, container: str) -> ContainerState | None:
        try:
            with translating_errors(f"inspect container {container}"):
                attributes = self._client.inspect_container(container)
        except NoSuchContainer:
            return None
        return ContainerState.of(attributes)

    def inspect_existing(self, container: str) -> ContainerState:
        """Return the state of a container. Raises `NoSuchContainer` if it does not exist."""
        state = self.inspect(container)
        if state is None:
            raise NoSuchContainer(f"container {container} was removed while its trial ran")
        return state

    def inspect_ended(self, container: str) -> ContainerState:
        """Return the state of a container that has ended. Raises `NoSuchContainer`.

        The engine may learn that a memory limit was hit only after the end. If the first process
        was killed, this method waits up to a second for that event.
        """
        state = self.inspect_existing(container)
        deadline = clock.monotonic() + _EVENT_S
        while state.exit_status == _KILLED and not state.out_of_memory:
            if clock.monotonic() >= deadline:
                break
            clock.sleep(_POLL_S)
            state = self.inspect_existing(container)
        return state

    def environment(self, container: str) -> dict[str, str]:
        """Return the environment of a container. Raises `NoSuchContainer` if it does not exist."""
        with translating_errors(f"inspect container {container}"):
            variables = self._client.inspect_container(container)["Config"]["Env"] or []
        return dict(variable.partition("=")[::2] for variable in variables)

    def processes(self, container: str) -> frozenset[str]:
        """Return the process ids of a running container, on the engine's machine.

        The set includes the first process. Raises `ContainerFailed` if the container does not run
        or the engine's machine has no `ps`. Raises `ProcessEnded` if the engine repeatedly listed
        none.
        """
        for _ in range(_LISTINGS - 1):
            with suppress(ProcessEnded):
                return self._listed_processes(container)
        return self._listed_processes(container)

    def _listed_processes(self, container: str) -> frozenset[str]:
        action = f"list the processes of container {container}"
        with translating_errors(action):
            # With options for `ps`, Podman runs the container's own `ps`, which an agent may have
            # changed.
            columns = "hpid" if self._asks_podman() else "-eo pid"
            listed = self._client.top(container, columns)["Processes"]
        if not listed:  # Docker answers so if the container ends meanwhile.
            raise ProcessEnded(f"could not {action}: the engine listed none")
        return frozenset(str(pid) for pid, *_ in listed)

    def was_paused(self, container: str) -> bool:
        """Return whether the engine's event log shows that an ended container had been paused.

        The log holds only the last 256 events of all containers since the engine started.
        """
        state = self.inspect(container)
        if state is None or not state.has_ended:
            return False
        since, until = (clock.parse(t).timestamp() for t in (state.started_at, state.finished_at))
        filters = json.dumps({"container": [container], "event": ["pause"]})
        query = {"since": f"{since - 1:.3f}", "filters": filters}
        with translating_errors(f"read the events of container {container}"):
            # Podman finds nothing with an end time in the past. Only Docker stops there by itself.
            if self._asks_podman():
                query["stream"] = "false"
            else:
                query["until"] = f"{until + 0.001:.3f}"
            return bool(get_answer(self._client, "/events", query).content.strip())

    def _asks_podman(self) -> bool:
        """Return whether the engine is Podman. Raises errors of the Docker library."""
        if self._is_podman is None:
            self._is_podman = is_podman(get_answer(self._client, "/_ping", {}).headers)
        return self._is_podman

    def kill(self, container: str) -> None:
        """Kill a container. Do nothing if it has ended already."""
        try:
            with translating_errors(f"kill container {container}"):
                self._client.kill(container)
        except ContainerFailed:
            state = self.inspect(container)
            if state is not None and not state.has_ended:
                raise

    def remove(self, container: str) -> None:
        """Kill and remove a container. Do nothing if it does not exist.

        If another client is removing it, wait until that is done.
        """
        from docker.errors import APIError

        with suppress(NoSuchContainer), translating_errors(f"remove container {container}"):
            try:
                self._client.remove_container(container, force=True, v=True)
            except APIError as error:
                if "is already in progress" not in str(error):
                    raise
                self._await_removal(container)

    def _await_removal(self, container: str) -> None:
        """Wait until a container is gone. Polls, because its event may have passed already."""
        deadline = clock.monotonic() + API_TIMEOUT_S
        while self.inspect(container) is not None:
            if clock.monotonic() > deadline:
                raise ContainerFailed(f"container {container} is still being removed")
            clock.sleep(_POLL_S)

    def containers_with_labels(self, labels: Mapping[str, str | None]) -> list[ListedContainer]:
        """Return all containers, running or not, with all of `labels`. None matches any value."""
        with translating_errors("list containers"):
            entries = self._client.containers(all=True, filters={"label": label_filter(labels)})
        return list(map(ListedContainer.of, entries))

    def run_probe(
        self,
        image: str,
        script: str,
        labels: dict[str, str],
        user: str | None = None,
        oci_runtime: str | None = None,
        host_config: JsonObject | None = None,
    ) -> tuple[int, str]:
        """Run a shell script in a new container without network. Return exit status and output.

        The output ends with stderr only if the script fails, because a shell or loader may warn
        there without a reason. `host_config` adds to the container's configuration, such as GPUs.
        The status is -1 if the script did not end within 60 s.
        """
        name = f"labledger-probe-{secrets.token_hex(8)}"
        config: JsonObject = {} if user is None else {"User": user}
        config |= {
            "Image": image,
            "Entrypoint": ["sh", "-c", script],
            "Labels": labels,
            "NetworkDisabled": True,
            "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "json-file"}},
        }
        config["HostConfig"] |= host_config or {}
        if oci_runtime is not None:
            config["HostConfig"]["Runtime"] = oci_runtime
        try:
            self.create(name, config)
            self.start(name)
            status = self.wait(name, API_TIMEOUT_S)
            with translating_errors(f"read the output of a probe of image {image}"):
                output = self._client.logs(name, stderr=False)
                if status != 0:
                    output += self._client.logs(name, stdout=False)
            return (-1 if status is None else status), output.decode("utf-8", "replace")
        finally:
            self.remove(name)


def get_answer(
    client: APIClient,
    path: str,
    query: dict[str, str],
    *,
    stream: bool = False,
    may_be_missing: bool = False,
) -> Response:
    """Return the engine's answer to a request for which the library has no function.

    Raises errors of the Docker library. With `may_be_missing`, `NOT_FOUND` raises none.
    """
    from docker.errors import create_api_error_from_http_exception
    from requests.exceptions import HTTPError

    url = f"{client.base_url}/v{client.api_version}{path}"
    response = client.get(url, params=query, stream=stream, timeout=client.timeout)
    if may_be_missing and response.status_code == NOT_FOUND:
        return response
    try:
        response.raise_for_status()
    except HTTPError as error:
        create_api_error_from_http_exception(error)
    return response


def _connect(timeout_s: int) -> APIClient:
    from docker import APIClient
    from docker.errors import DockerException

    class Client(APIClient):
        def version(self, api_version: bool = True) -> JsonObject:
            """Return the version of the API, which the library needs when it connects.

            Every answer to a ping has the version. For `/version`, an engine starts programs each
            time.
            """
            ping = self.get(f"{self.base_url}/_ping", timeout=timeout_s)
            version = ping.headers.get("Api-Version")
            return {"ApiVersion": version} if version else super().version(api_version)

    settings = engine_settings()
    require_credentials_file()
    try:
        return Client(version="auto", timeout=timeout_s, **settings)
    except (DockerException, OSError, ValueError, TypeError, AttributeError) as error:
        address = settings.get("base_url", f"unix://{_DEFAULT_SOCKET}")
        raise refused_socket_error(address) or EngineUnavailable(
            f"no Docker engine answers at {address}: {first_line(error)}",
            hint="start Docker (`scripts/engine` does in a checkout), or set DOCKER_HOST",
        ) from error


class EnginePool:
    """Engines for the threads of one owner. One thread uses an engine at a time.

    Creates at most as many engines as threads use at the same time. Thread-safe.
    """

    def __init__(self) -> None:
        self._idle: LifoQueue[Engine] = LifoQueue()

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Provide an engine for exclusive use."""
        try:
            engine = self._idle.get_nowait()
        except Empty:
            engine = Engine()
        try:
            yield engine
        finally:
            self._idle.put(engine)

    def close(self) -> None:
        """Close every engine. No thread may be using one."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()
