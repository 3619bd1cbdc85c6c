"""Who a host is, durably, how many GPUs it has, and the refusal of a second worker on it.

A host is an engine and a folder. An id in the folder identifies it, so that a restarted worker is
the same host at any address. Attempts belong to a host for ever: its folder never changes engine
or machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from labledger.engine.engine import Engine
from labledger.errors import InvalidInput, LabLedgerError, Parameter, Problem
from labledger.files.durable_files import make_folder, write_file
from labledger.records import JsonObject
from labledger.records.canonical_json import sha256_hex
from labledger.text.words import quoted

FORMAT_VERSION = 1
FOLDER_VARIABLE = "LABLEDGER_HOST_DIR"
_MACHINE_ID = Path("/etc/machine-id")
_FILE = "host.json"
_LOCK = "lock"
_PREFIX_LENGTH = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class HostBusy(LabLedgerError):
    """Another worker serves this host."""


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """A host, as its folder and its engine identify it."""

    host_id: str
    """32 random hexadecimal digits, made once for the folder."""
    node: str
    """The name of the machine, or the value of `--name`."""
    engine_id: str
    """Identifies the engine whose containers the host's attempts have."""

    @property
    def name(self) -> str:
        """The host's name in ledgers: `NODE/IDPREFIX`."""
        return f"{self.node}/{self.host_id[:_PREFIX_LENGTH]}"


def default_folder() -> Path:
    """Return the folder of this user's host: `$LABLEDGER_HOST_DIR`, or one below `~/.local`.

    Raises `InvalidInput` if there is no such variable and this user has no home folder.
    """
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder).absolute()
    try:
        data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError:
        text = "is missing, and this user has no home folder; name a permanent folder"
        raise _unusable(FOLDER_VARIABLE, text) from None
    return Path(data) / "labledger" / "host"


@contextmanager
def serving_host(folder: Path, name: str | None = None) -> Iterator[HostIdentity]:
    """Provide the identity of the host in `folder`, as its only worker.

    `name` replaces the machine's name. Workers with different names may share an engine, and their
    slots add up. Raises `HostBusy` if another process serves the
    folder, or this name on this engine, `InvalidInput` for an unusable name or a folder that
    belongs to another engine, and `EngineUnavailable`.
    """
    node = name or platform.node() or "host"
    if not _NAME.fullmatch(node):
        expected = "at most 63 letters, digits and _ . -, starting with a letter or digit"
        problem = Problem(Parameter("name"), f"found {quoted(node)}; expected {expected}")
        raise InvalidInput("the host's name", [problem])
    make_folder(folder)
    folder.chmod(0o700)
    with closing(Engine().connect()) as engine:
        engine_id = engine_identity(engine)
    with ExitStack() as stack:
        stack.enter_context(_folder_locked(folder))
        stack.enter_context(name_locked(engine_id, node))
        yield _read_or_create(folder, node, engine_id)


def engine_identity(engine: Engine) -> str:
    """Return a text that identifies an engine across its restarts.

    Some engines (Podman) report another id each time. Machine and data folder identify these.
    """
    first, second = engine.info(), engine.info()
    if first.get("ID") and first["ID"] == second.get("ID"):
        return str(first["ID"])
    return f"{second.get('Name', '')}:{second.get('DockerRootDir', '')}"


def _machine_identity() -> str | None:
    """Return a text that identifies this machine across its restarts; None if there is none."""
    try:
        machine_id = _MACHINE_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    # According to its manual page, the id is confidential. A digest of it is not.
    return sha256_hex(f"labledger host {machine_id}".encode())[:32] if machine_id else None


def _read_or_create(folder: Path, node: str, engine_id: str) -> HostIdentity:
    path = folder / _FILE
    try:
        stored: JsonObject = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        stored = {"version": FORMAT_VERSION, "id": secrets.token_hex(16), "engine_id": engine_id}
    except ValueError as error:
        raise LabLedgerError(
            f"{path}, which identifies this host, cannot be read: {error}",
            hint="restore it from a copy: the attempts of this host are known by its id; or move "
            "the folder away, and this machine is a new host",
        ) from error
    if stored.get("version") != FORMAT_VERSION:
        raise LabLedgerError(f"{path} is of version {stored.get('version')}, not {FORMAT_VERSION}")
    if stored.get("engine_id") != engine_id:
        raise _unusable(
            str(folder),
            f"its attempts have containers of the engine {stored.get('engine_id')}, and the engine "
            f"that answers is {engine_id}",
            "point DOCKER_HOST to the engine of this folder, or choose another `folder=` for a new "
            "host",
        )
    machine = _machine_identity()
    if machine is not None and stored.get("machine_id", machine) != machine:
        raise _unusable(
            str(folder),
            "it was copied from another machine, to which its attempts belong",
            "choose another `folder=`, or delete this one, for a new host. If this is the same "
            f"machine and only its id has changed, delete `machine_id` in {path}",
        )
    if "machine_id" not in stored and machine is not None:
        stored["machine_id"] = machine
    write_file(path, json.dumps(stored).encode())
    return HostIdentity(str(stored["id"]), node, engine_id)


def _unusable(where: str, message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the host's folder", [Problem(where, message, hint=hint)])


@contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the host's folder. The system releases it when the process ends."""
    with (folder / _LOCK).open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostBusy(
                f"another worker serves the host in {folder}",
                hint="a host has one worker; stop the other one first",
            ) from None
        yield


@contextmanager
def name_locked(engine_id: str, node: str) -> Iterator[None]:
    """Be the only worker of this name on this engine, in any folder.

    An abstract socket leaves no file, and no file of another user can block it. It exists only on
    Linux: elsewhere, only the folder is locked.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    address = f"\0labledger-host-{sha256_hex(f'{engine_id} {node}'.encode())[:32]}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(address)
        except OSError:
            raise HostBusy(
                f"another worker serves this machine's engine under the name {node}",
                hint="a host has one worker; stop the other one, or raise its `slots=`. To share "
                "the engine on purpose, give each worker a `folder=` and a `name=`",
            ) from None
        yield


_DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
_CDI_DEVICE = re.compile(r"nvidia\.com/gpu=\d+")
"""A GPU by its number. Engines list the same GPUs also by other names, and all as `=all`."""


def count_gpus(engine_info: JsonObject, driver_folder: Path = _DRIVER_FOLDER) -> int | None:
    """Return the number of GPUs; None if the engine has an unknown number of them.

    An engine with CDI specifications lists its GPUs. Otherwise NVIDIA's driver on this machine has
    a folder for each. For other vendors or an engine elsewhere, the user states the number.
    """
    devices = engine_info.get("DiscoveredDevices") or []
    listed = {str(device.get("ID")) for device in devices if isinstance(device, dict)}
    numbered = sum(_CDI_DEVICE.fullmatch(name) is not None for name in listed)
    if numbered:
        return numbered
    try:
        of_driver = sum(1 for _ in driver_folder.iterdir())
    except OSError:
        of_driver = 0
    has_runtime = "nvidia" in (engine_info.get("Runtimes") or {})
    return None if has_runtime and not of_driver else of_driver
