"""The coordinator's state of one host: its attempts, removals and requests.

A link outlives the addresses and processes of its host. It also exists for a host that has not
answered in this session, if attempts belong to it. The coordinator's thread and the connection's
thread share it: hold the executor's lock.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from labledger import clock
from labledger.execution.host_state import HostState
from labledger.hosts.host_messages import (
    AttemptKey,
    Described,
    Exchange,
    InterruptedAttempt,
    Kill,
    Removal,
    RunSetup,
)
from labledger.hosts.host_transport import ClusterConnection, HostUnreachable
from labledger.records.attempt_result import AttemptResult
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life.start_limiter import LeftToNextProcess, StartRefused

_MAX_ATTEMPTS_PER_EXCHANGE = 64
_ASK_TIMEOUT_S = 60.0


def set_result(future: Future[Any], result: Any) -> None:
    """End a future, unless it has ended."""
    with suppress(InvalidStateError):
        future.set_result(result)


def set_exception(future: Future[Any], error: BaseException) -> None:
    """End a future with an error, unless it has ended."""
    with suppress(InvalidStateError):
        future.set_exception(error)


@dataclass(slots=True)
class Pending:
    """A submitted attempt whose result has not arrived."""

    spec: AttemptSpec
    future: Future[AttemptResult]
    is_ready: bool = False
    """Whether its host has all inputs of the attempt."""
    is_sent: bool = False
    """Whether any process of its host may have received the attempt."""
    is_delivered: bool = False
    """Whether the present process of its host has received the attempt."""
    was_delivered: bool = False
    """Whether an earlier process of its host has received the attempt."""
    is_recalled: bool = False
    """Whether it must not start. Each process that receives the attempt gets this order with it."""

    @property
    def is_new(self) -> bool:
        """Whether the attempt certainly has no container, and no host will run it."""
        return not (self.is_sent or self.spec.container_may_exist)

    def refuse(self) -> None:
        """End the attempt without a result, and leave it to the next session."""
        set_exception(self.future, StartRefused() if self.is_new else LeftToNextProcess())


@dataclass(slots=True)
class Leaving:
    """A removal or a cancellation that has not ended."""

    order: Removal | InterruptedAttempt
    future: Future[None]
    is_delivered: bool = False


@dataclass(slots=True)
class HostLink:
    """One host of a run."""

    name: str
    address: str | None = None
    """The address of its process; None if it is unknown."""
    last_address: str | None = None
    """The address from which it last answered."""
    session: str | None = None
    """The session of its present process; None until it has answered."""
    state: HostState | None = None
    has_answered: bool = False
    """Whether an exchange for this run has succeeded."""
    lost_because: str | None = None
    """Why a user declared it lost; None if it is not lost."""
    blocked_since: float = field(default_factory=clock.monotonic)
    """Since when its attempts cannot advance. Meaningful only while `problem` is not None."""
    needs_preparation: bool = False
    """Whether each of its processes must be prepared for the run's agents."""
    is_prepared: bool = False
    """Whether its present process is prepared, if that is needed."""
    preparation_problem: str | None = None
    """Why its present process is not prepared."""
    supply_problem: str | None = None
    """Why the inputs of an attempt cannot be sent to it."""
    duplicates: str | None = None
    """A sentence that several machines claim to be this host, with their addresses."""
    bad_replies: dict[bool, str] = field(default_factory=dict)
    """Why its last reply was unusable, to orders (True) and to questions (False)."""
    bad_results: dict[AttemptKey, str] = field(default_factory=dict)
    """Why results of attempts from its present process are unusable."""
    mark: str = field(default_factory=partial(secrets.token_hex, 8))
    """A random text by which this coordinator recognizes the machine."""
    reserved: dict[AttemptKey, str] = field(default_factory=dict)
    """The image ids of attempts that are placed here and not yet submitted."""
    pending: dict[AttemptKey, Pending] = field(default_factory=dict)
    leaving: dict[AttemptKey, Leaving] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    recalled: set[AttemptKey] = field(default_factory=set)
    """Killed or recalled attempts, which the host may refuse to start."""
    received: set[AttemptKey] = field(default_factory=set)
    """Ended attempts that the host need not report again."""
    confirmed: set[AttemptKey] = field(default_factory=set)
    """Ended removals, until the host knows that the coordinator knows of them."""
    started: frozenset[AttemptKey] = frozenset()
    known_inputs: set[str] = field(default_factory=set)
    """Digests and image ids that its present process has."""
    supplies: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Transfers of inputs that have not ended, by digest and image id."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _clock_base: tuple[float, float] | None = None
    """The host's monotonic time in its last reply, and this machine's time of its arrival."""
    _orders: int = 0
    """The number of exchanges with orders so far."""
    _is_marked: bool = False
    """Whether the host has kept `mark`."""
    _stop_delivered: bool = False
    _loss_delivered: bool = False
    """Whether its present process knows that it was declared lost."""
    _granted_until: float = float("-inf")
    """The end of its grant to start containers, by this machine's monotonic clock."""

    @property
    def is_connected(self) -> bool:
        """Whether its process is known and answered the last request."""
        return self.address is not None and self.session is not None

    @property
    def is_awaited(self) -> bool:
        """Whether its first reply is still expected."""
        if not self.is_connected or self.bad_replies:
            return False
        is_decided = self.is_ready or self.preparation_problem or self.lost_because
        return not self.has_answered or not is_decided

    @property
    def is_ready(self) -> bool:
        """Whether its present process is prepared for the run's agents."""
        return self.is_prepared or not self.needs_preparation

    @property
    def problem(self) -> str | None:
        """Why no trial is placed here; None if trials may be placed."""
        if self.lost_because is not None:
            return f"it was declared lost: {self.lost_because}"
        if self.duplicates is not None:
            return self.duplicates
        if self.bad_replies:
            return next(iter(self.bad_replies.values()))
        if not self.is_connected or not self.has_answered:
            return "it does not answer"
        if not self.is_ready:
            return self.preparation_problem or "it is being prepared for the agents of the run"
        if self.supply_problem is not None:
            return self.supply_problem
        if self.bad_results:
            return next(iter(self.bad_results.values()))
        return None if self.state is None else self.state.problem

    @property
    def taken(self) -> int:
        """How many attempts of this run the host has."""
        return len(self.reserved) + len(self.pending)

    def has_image(self, image_id: str) -> bool:
        """Return whether the host certainly has an image."""
        return image_id in self.known_inputs or (
            self.state is not None and image_id in self.state.images
        )

    def awaits_image(self, image_id: str) -> bool:
        """Return whether an attempt waits here for an image that it lacks."""
        waiting = (attempt for attempt in self.pending.values() if not attempt.is_ready)
        return image_id in self.reserved.values() or any(
            attempt.spec.container.image_id == image_id for attempt in waiting
        )

    @property
    def may_start(self) -> bool:
        """Whether the host may still start a container, even after it was declared lost.

        It may not once it knows of the loss, or once its grant has expired.
        """
        return not self._loss_delivered and clock.monotonic() < self._granted_until

    def connect(self, address: str, described: Described) -> list[AttemptKey]:
        """Use the process of the host that answers at `address`.

        Return the attempts that must be prepared and delivered to this process again.
        """
        unprepared = []
        if described.session != self.session:
            self.session = described.session
            self.has_answered = False
            self.known_inputs.clear()
            self.supply_problem = self.preparation_problem = None
            self.is_prepared = False
            self._clock_base = None
            self._stop_delivered = self._loss_delivered = False
            self.received.clear()
            self.confirmed.clear()
            self.bad_replies.clear()
            self.bad_results.clear()
            for key, pending in self.pending.items():
                if pending.is_ready:
                    unprepared.append(key)
                pending.was_delivered = pending.was_delivered or pending.is_delivered
                pending.is_ready = pending.is_delivered = False
            for leaving in self.leaving.values():
                leaving.is_delivered = False
        self.duplicates = None
        self.address = self.last_address = address
        self.state = described.state
        self.wake.set()
        return unprepared

    def disconnect(self) -> None:
        """Forget the process of the host, which did not answer or is gone."""
        self.address = self.session = None
        self.has_answered = False

    def record_contact(self, monotonic: float) -> None:
        """Record a reply that the host sent at `monotonic`, by its own clock."""
        self._clock_base = (monotonic, clock.monotonic())
        self.has_answered = True

    def grant_until(self, allowed_until: float) -> float | None:
        """Return the end of a grant by the host's clock, from its end by this machine's clock.

        The result may be too early by the time that a reply takes, but never too late. None if the
        host has not answered yet.
        """
        if self._clock_base is None:
            return None
        host_time, local_time = self._clock_base
        return host_time + (allowed_until - local_time)

    async def ask(self, connection: ClusterConnection, request: Callable[[str], object]) -> Any:
        """Return the reply of its present process. `request` makes the request for a session.

        Raises `HostUnreachable`, also if no process is known, and as `ClusterConnection.call` does.
        """
        if self.address is None or self.session is None:
            raise HostUnreachable(f"{self.name} does not answer")
        return await connection.call(self.address, request(self.session), _ASK_TIMEOUT_S)

    def has_orders(self, *, stopping: bool) -> bool:
        """Return whether there are orders to deliver."""
        return (
            bool(self.kills)
            or (stopping and not self._stop_delivered)
            or (self.lost_because is not None and not self._loss_delivered)
            or any(not removal.is_delivered for removal in self.leaving.values())
            or any(one.is_ready and not one.is_delivered for one in self.pending.values())
        )

    def next_exchange(
        self, setup: RunSetup, allowed_until: float, *, stopping: bool, with_orders: bool
    ) -> Exchange:
        """Return the next request for the host. Its session must be known.

        A lost host gets no grant. A request without the waiting kills gets none either. Attempts
        that may already run come first, before others take their places.
        """
        assert self.session is not None
        is_lost = self.lost_because is not None
        starts_nothing = is_lost or (bool(self.kills) and not with_orders)
        grant = None if starts_nothing else self.grant_until(allowed_until)
        if grant is not None:
            self._granted_until = max(self._granted_until, allowed_until)
        undelivered = [one.order for one in self.leaving.values() if not one.is_delivered]
        orders = undelivered if with_orders else []
        waiting = [one for one in self.pending.values() if one.is_ready and not one.is_delivered]
        waiting.sort(key=lambda attempt: attempt.is_new)
        chosen = waiting[:_MAX_ATTEMPTS_PER_EXCHANGE] if with_orders and not is_lost else []
        self._orders += with_orders
        for attempt in chosen:
            attempt.is_sent = True
        recalls = [Kill(one.spec, spares_started=True) for one in chosen if one.is_recalled]
        kills = [*self.kills, *(recall for recall in recalls if recall not in self.kills)]
        return Exchange(
            session=self.session,
            setup=setup,
            mark=self.mark,
            is_marked=self._is_marked,
            grant_until=grant,
            stopping=stopping,
            is_lost=is_lost,
            number=self._orders if with_orders else 0,
            attempts=tuple(attempt.spec for attempt in chosen),
            delivered_before=frozenset(one.spec.key for one in chosen if one.was_delivered),
            removals=tuple(order for order in orders if isinstance(order, Removal)),
            cancellations=tuple(order for order in orders if isinstance(order, InterruptedAttempt)),
            kills=tuple(kills) if with_orders else (),
            received=frozenset(self.received),
            confirmed=frozenset(self.confirmed),
        )

    def forget_recalls(self, key: AttemptKey) -> None:
        """Drop the order to recall an attempt that was submitted again."""
        self.kills = [
            kill for kill in self.kills if kill.spec.key != key or not kill.spares_started
        ]

    def record_delivery(self, request: Exchange) -> None:
        """Record that the host has received the orders of a request."""
        if request.session != self.session:
            return
        for spec in request.attempts:
            if (pending := self.pending.get(spec.key)) is not None:
                pending.is_delivered = True
        orders: list[Removal | InterruptedAttempt] = [*request.removals, *request.cancellations]
        for order in orders:
            if (leaving := self.leaving.get(order.spec.key)) is not None:
                leaving.is_delivered = True
        # Compare by identity: an equal order may have replaced a dropped one meanwhile.
        delivered = set(map(id, request.kills))
        self.kills = [kill for kill in self.kills if id(kill) not in delivered]
        self.confirmed -= request.confirmed
        self._is_marked = True
        self._stop_delivered = self._stop_delivered or request.stopping
        self._loss_delivered = self._loss_delivered or request.is_lost
