"""The host's side of a cluster: one object in each host's process that answers every request.

It knows no transport: `answer` takes the bytes of a request, in any thread. All runs on the host
share its slots, inputs and engine. A request may be repeated, delayed or lost without harm; see
`host_messages`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labledger import __version__, clock
from labledger.engine import container_files
from labledger.engine.engine import EnginePool
from labledger.engine.engine_facts import EngineFacts
from labledger.errors import EngineUnavailable, LabLedgerError
from labledger.execution.host_state import HostState
from labledger.execution.probe_owners import probe_labels, remove_left_probes
from labledger.files.partial_files import read_chunk
from labledger.hosts import host_messages as messages
from labledger.hosts.host_attempts import HostAttempts
from labledger.hosts.host_identity import (
    HostIdentity,
    count_gpus,
    default_folder,
    serving_host,
)
from labledger.hosts.host_inputs import HostInputs, StoreTransfers
from labledger.hosts.host_messages import (
    HostRefused,
    HostRequest,
    Refusal,
    RunKey,
    RunRequest,
    WrongSession,
)
from labledger.hosts.host_preparation import AgentFolders, RunPreparation, find_missing
from labledger.hosts.host_run import HostRun
from labledger.hosts.host_run_folder import HostRunFolder
from labledger.hosts.message_bytes import BadMessage, decode, encode
from labledger.records import JsonObject
from labledger.records.identity import RUN_ID
from labledger.trial.free_disk_space import (
    MIN_FREE_BYTES,
    DiskSpace,
    engine_data_folder,
    free_space,
)
from labledger.trial.life.container_config import LimitsRefused, find_ignored_limits, limits_of
from labledger.trial.life.start_limiter import RunPermits

_STATE_AGE_S = 5.0
"""How many seconds the engine's settings and images are cached."""
_RETRY_S = 1.0
"""The same if the engine did not answer."""
_MAX_INPUTS_REPORTED = 2000
_SHORTAGE_AGE_S = 0.5
"""How many seconds the state of the disks is cached."""
_GATEWAY_INTERVAL_S = 3.0
"""Seconds between two checks of the gateways of models."""


class HostService:
    """Answers the requests of coordinators to one host. Thread-safe."""

    def __init__(self, folder: Path, identity: HostIdentity, settings: HostSettings) -> None:
        """`folder` is the host's folder, which only this process serves (`serving_host`)."""
        self.identity = identity
        self.session = secrets.token_hex(8)
        self.folder = folder
        self.settings = settings
        self._engines = EnginePool()
        self._permits = RunPermits(settings.slots)
        self._inputs = HostInputs(folder / "store", self._engines)
        self.transfers = StoreTransfers(self._inputs)
        self._agents = AgentFolders(folder / "agents", self._inputs.store)
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._runs: dict[RunKey, HostRun] = {}
        self._engine_lock = threading.Lock()
        self._engine_info: JsonObject = {}
        self._images: frozenset[str] = frozenset()
        self._engine_problem: str | None = None
        self._ignored_limits: frozenset[str] = frozenset()
        self._engine_read = float("-inf")
        self._shortage: str | None = None
        self._shortage_read = float("-inf")
        self._closed = False
        self._inputs.delete_unused()
        if not any((folder / "runs").glob("*/*/accepted/*")):
            self._agents.delete_unused()
        self._handlers: dict[type, Callable[[Any], object]] = {
            messages.Describe: lambda _: self.describe(),
            messages.TryLimits: self._try_limits,
            messages.TryModels: lambda r: messages.TriedModels(find_missing(r.needs)),
            messages.MissingInputs: lambda r: self._inputs.missing(r.digests, r.images),
            messages.FindImages: lambda r: messages.FoundImages(self._inputs.find_images(r.refs)),
            messages.PullImage: lambda r: self._inputs.pull_image(r.ref),
            messages.PutChunk: lambda r: messages.ChunkReply(*self._inputs.put(r)),
            messages.ReadChunk: lambda r: messages.Chunk(
                read_chunk(self._result_file(r), r.offset, messages.CHUNK_BYTES)
            ),
            messages.GetInput: self.transfers.get_input,
            messages.PutOutput: lambda r: self.transfers.put_output(r, self._result_file(r)),
        }
        self._run_handlers: dict[type, Callable[[HostRun, Any], object]] = {
            messages.PrepareRun: lambda run, r: run.attempts.preparation.prepare(r),
            messages.ShareCaps: lambda run, r: run.attempts.preparation.share(r),
            messages.Exchange: self._exchange,
            messages.ListAttempts: lambda run, r: messages.ListedAttempts(
                run.attempts.attempts(r.setup.run)
            ),
            messages.CleanUp: lambda run, r: messages.CleanedUp(tuple(run.attempts.clean_up(r))),
            messages.ForgetAttempts: lambda run, r: messages.CleanedUp(
                tuple(run.attempts.forget_attempts(r))
            ),
        }

    def answer(self, request: bytes) -> bytes:
        """Carry out an encoded request and return the encoded reply. Raises nothing.

        The reply holds any error. A raised exception could be logged with its arguments, which may
        hold secrets.
        """
        try:
            return encode(self.reply(decode(request)))
        except BadMessage as error:
            refusal = Refusal(type(error).__name__, f"the coordinator {error.message}")
        except LabLedgerError as error:
            refusal = Refusal(type(error).__name__, error.message)
        except Exception as error:
            refusal = Refusal(type(error).__name__, f"{type(error).__name__}: {error}")
        return encode(refusal)

    def reply(self, request: object) -> object:
        """Carry out a request and return the reply. Raises `LabLedgerError`, and `OSError`."""
        kind, name = type(request), self.identity.name
        if kind not in self._handlers and kind not in self._run_handlers:
            raise HostRefused(f"the host {name} does not know {kind}")
        is_for_this = not isinstance(request, HostRequest) or request.session == self.session
        if not is_for_this or self._closed:
            raise WrongSession(f"the host {name} now has another process")
        if not isinstance(request, RunRequest):
            return self._handlers[kind](request)
        run = self._run(request.setup.run)
        run.enter_epoch(request.setup)
        return self._run_handlers[kind](run, request)

    def describe(self) -> messages.Described:
        """Return which host this is, and its state."""
        return messages.Described(self.session, self.state(), clock.monotonic(), clock.unix_time())

    def state(self) -> HostState:
        """Return the state of the host."""
        self._read_engine()
        info = self._engine_info
        free = free_space(self.folder)
        return HostState(
            name=self.identity.name,
            host_id=self.identity.host_id,
            slots=self.settings.slots,
            busy=self._permits.busy,
            images=self._images,
            inputs=frozenset(self._inputs.digests(_MAX_INPUTS_REPORTED)),
            free_bytes=None if free is None else free.bytes,
            cpus=info.get("NCPU"),
            memory_bytes=info.get("MemTotal"),
            gpus=count_gpus(info) if self.settings.gpus is None else self.settings.gpus,
            # An engine that has never answered has no settings.
            ignores_storage=bool(info) and EngineFacts.of(info).ignores_storage,
            labledger_version=__version__,
            last_seen=clock.utc_now(),
            problem=self._problem(),
        )

    @contextmanager
    def serving(self) -> Iterator[HostService]:
        """Answer requests in the block. Afterwards, containers continue without this process."""
        threading.Thread(target=self._keep_gateways, name="gateways", daemon=True).start()
        try:
            yield self
        finally:
            self._closed = True
            self._ending.set()
            self._inputs.close()
            self.transfers.close()
            with ExitStack() as stack:
                for run in list(self._runs.values()):
                    stack.enter_context(run.attempts.closing())

    def _keep_gateways(self) -> None:
        """Keep the gateways of open attempts running, also while no coordinator calls."""
        while not self._ending.wait(_GATEWAY_INTERVAL_S):
            with self._changed:
                runs = list(self._runs.values())
            for run in runs:
                run.attempts.look_at_gateway()

    # -- requests

    def _try_limits(self, request: messages.TryLimits) -> messages.TriedLimits:
        """Try limits, and remember the ignored ones. Raises `EngineUnavailable`."""
        limits = request.limits
        with self._engines.engine() as engine:
            facts = EngineFacts.of(engine.info())
            images = (image for image in limits.images if engine.image_id(image) is not None)
            if (image := next(images, None)) is None:
                return messages.TriedLimits(self._describe_limits(facts))

            remove_left_probes(engine)

            def run_probe(script: str, config: JsonObject) -> tuple[int, str]:
                runtime = limits.oci_runtime
                return engine.run_probe(
                    image, script, probe_labels(), oci_runtime=runtime, host_config=config
                )

            runtime = limits.oci_runtime or facts.default_runtime
            try:
                ignored = find_ignored_limits(run_probe, runtime, limits.resources)
            except LimitsRefused as error:
                return messages.TriedLimits(self._describe_limits(facts), error.message)
        in_force = limits_of(limits.resources).keys() - set(ignored)
        self._ignored_limits = (self._ignored_limits - in_force).union(ignored)
        return messages.TriedLimits(self._describe_limits(facts))

    def _exchange(self, run: HostRun, request: messages.Exchange) -> messages.ExchangeReply:
        reply = run.exchange(request)
        return replace(reply, state=self.state()) if request.wants_state else reply

    def _result_file(self, request: messages.ReadChunk | messages.PutOutput) -> Path:
        path = self._run(request.run).attempts.folder.result_file(request.key, request.sha256)
        if path is None:
            raise HostRefused(f"the host has no such file of attempt {request.key}")
        return path

    def _run(self, key: RunKey) -> HostRun:
        """Return a run. Open it if this process has not seen it yet."""
        if not RUN_ID.fullmatch(key.run_id) or not key.ledger_id.isalnum():
            raise HostRefused(f"{key} cannot be a run")
        self._read_engine()
        with self._changed:
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = HostRun(
                    self.identity.name,
                    HostAttempts(
                        folder=HostRunFolder(self.folder / "runs" / key.ledger / key.run_id),
                        slots=self.settings.slots,
                        permits=self._permits,
                        inputs=self._inputs,
                        preparation=RunPreparation(self.folder, key, self._agents),
                        engines=self._engines,
                        engine_root=engine_data_folder(self._engine_info),
                        lacks_space=lambda: self._find_shortage() is not None,
                        changed=self._changed,
                    ),
                )
            return run

    # -- state

    def _problem(self) -> str | None:
        """Return why no trial should be placed here; None if trials may be placed."""
        if self._engine_problem is not None:
            return self._engine_problem
        problem = self._describe_limits(EngineFacts.of(self._engine_info)) or self._find_shortage()
        if problem is not None:
            return problem
        with self._changed:
            runs = list(self._runs.values())
        problems = (run.attempts.problem for run in runs)
        return next((problem for problem in problems if problem is not None), None)

    def _describe_limits(self, facts: EngineFacts) -> str | None:
        """Return a sentence with the limits that the engine ignores; None if it enforces all."""
        if facts.shortcoming is None and self._ignored_limits:
            return facts.say_ignored(self._ignored_limits)
        return facts.shortcoming

    def _find_shortage(self) -> str | None:
        """Return which disk has too little space for further trials, from a short-lived cache."""
        now = clock.monotonic()
        if now - self._shortage_read > _SHORTAGE_AGE_S:
            space = DiskSpace.of(self.folder, self._engine_info, self.settings.min_free_bytes)
            self._shortage, self._shortage_read = space.find_shortage(), now
        return self._shortage

    def _read_engine(self) -> None:
        """Read the engine's settings and images, unless the cache is recent."""
        age_s = clock.monotonic() - self._engine_read
        if age_s < (_STATE_AGE_S if self._engine_problem is None else _RETRY_S):
            return
        # An engine may take a minute to fail. Meanwhile the host reports the last state.
        if not self._engine_lock.acquire(blocking=not self._engine_info):
            return
        try:
            try:
                with self._engines.engine() as engine:
                    self._engine_info = engine.info()
                    self._images = container_files.image_ids(engine)
                self._engine_problem = None
            except EngineUnavailable as error:
                self._engine_problem = error.message
            self._engine_read = clock.monotonic()
        finally:
            self._engine_lock.release()


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a worker serves its host."""

    slots: int
    folder: Path | None = None
    """The host's folder. The default is `default_folder()`."""
    name: str | None = None
    """The host's name. The default is the machine's name."""
    gpus: int | None = None
    """How many GPUs its engine offers. By default they are counted."""
    port: int = 0
    """The port on which `labledger worker` listens; 0 for a free port."""
    min_free_bytes: int = MIN_FREE_BYTES
    """No trial is placed on the host while its disk has less free space."""

    def open(self, stack: ExitStack) -> HostService:
        """Return the service of the host until the stack is closed.

        Raises `HostBusy`, `InvalidInput` and `EngineUnavailable`.
        """
        folder = self.folder or default_folder()
        identity = stack.enter_context(serving_host(folder, self.name))
        return stack.enter_context(HostService(folder, identity, self).serving())
