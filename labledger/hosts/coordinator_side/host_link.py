"""What a coordinator knows of one host, and what it has for it: attempts, removals, requests.

A link outlives the addresses and processes of its host, and exists also for a host that has not
been seen in this session, if attempts belong to it. Two threads share it, the coordinator's and
that of the connection: hold the executor's lock.
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
from labledger.execution.executor import HostState
from labledger.hosts.host_messages import (
    AttemptKey,
    Cancellation,
    Described,
    Exchange,
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
    """Whether its host has everything that it needs."""
    is_sent: bool = False
    """Whether any process of its host may have got it."""
    is_delivered: bool = False
    """Whether the present process of its host has got it."""
    was_delivered: bool = False
    """Whether an earlier process has."""
    is_recalled: bool = False
    """Whether it is to start no more. Each process that gets it is told so with it."""

    @property
    def is_new(self) -> bool:
        """Whether certainly nothing exists of it, and nobody else will run it."""
        return not (self.is_sent or self.spec.container_may_exist)

    def refuse(self) -> None:
        """End it as one that a stopping run leaves to the next session."""
        set_exception(self.future, StartRefused() if self.is_new else LeftToNextProcess())


@dataclass(slots=True)
class Leaving:
    """A removal or a cancellation that has not ended."""

    order: Removal | Cancellation
    future: Future[None]
    is_delivered: bool = False


@dataclass(slots=True)
class HostLink:
    """One host of a run."""

    name: str
    address: str | None = None
    """Where its process is, None if that is not known."""
    last_address: str | None = None
    """Where its process was when it last answered."""
    session: str | None = None
    """Of its present process; None until it was asked."""
    state: HostState | None = None
    has_answered: bool = False
    """Whether an exchange for this run has succeeded."""
    lost_because: str | None = None
    """Why somebody declared it lost."""
    blocked_since: float = field(default_factory=clock.monotonic)
    """Since when nothing of it can advance; only meaningful while `problem` is not None."""
    needs_preparation: bool = False
    """Whether a process of it has to be prepared for the run's agents."""
    is_prepared: bool = False
    """Whether its present process is, if that is needed."""
    preparation_problem: str | None = None
    """Why it is not."""
    supply_problem: str | None = None
    """Why it cannot be given what an attempt needs."""
    duplicates: str | None = None
    """That several machines say that they are this host, and where."""
    bad_replies: dict[bool, str] = field(default_factory=dict)
    """Why its last reply could not be used, to orders (True) and to questions (False)."""
    bad_results: dict[AttemptKey, str] = field(default_factory=dict)
    """Why results of attempts cannot be used, of its present process."""
    mark: str = field(default_factory=partial(secrets.token_hex, 8))
    """By which this coordinator knows the machine again."""
    reserved: dict[AttemptKey, str] = field(default_factory=dict)
    """The image ids of attempts that are placed here and not submitted yet."""
    pending: dict[AttemptKey, Pending] = field(default_factory=dict)
    leaving: dict[AttemptKey, Leaving] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    recalled: set[AttemptKey] = field(default_factory=set)
    """Attempts that it may refuse to start, because they were killed or recalled."""
    received: set[AttemptKey] = field(default_factory=set)
    """Ended attempts that need not be reported again."""
    confirmed: set[AttemptKey] = field(default_factory=set)
    """Removals that have ended, until the host knows that this is known."""
    started: frozenset[AttemptKey] = frozenset()
    known_inputs: set[str] = field(default_factory=set)
    """Digests and image ids that its present process has."""
    supplies: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Transfers of inputs that have not ended, by digest and image id."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _clock_base: tuple[float, float] | None = None
    """The host's monotonic time in its last reply, and this machine's when that arrived."""
    _orders: int = 0
    """How many exchanges with orders have begun."""
    _is_marked: bool = False
    """Whether the host has kept `mark`."""
    _stop_delivered: bool = False
    _loss_delivered: bool = False
    """Whether its present process knows that it was declared lost."""
    _granted_until: float = float("-inf")
    """Until when it was allowed to start containers, by this machine's monotonic clock."""

    @property
    def is_connected(self) -> bool:
        """Whether its process is known and answered last time."""
        return self.address is not None and self.session is not None

    @property
    def is_awaited(self) -> bool:
        """Whether its first reply may come any moment."""
        if not self.is_connected or self.bad_replies:
            return False
        is_decided = self.is_ready or self.preparation_problem or self.lost_because
        return not self.has_answered or not is_decided

    @property
    def is_ready(self) -> bool:
        """Whether its present process has what the run's agents need."""
        return self.is_prepared or not self.needs_preparation

    @property
    def problem(self) -> str | None:
        """Why nothing is placed here, None if trials may be."""
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
        """How many attempts of this run it has."""
        return len(self.reserved) + len(self.pending)

    def has_image(self, image_id: str) -> bool:
        """Return whether it certainly has an image."""
        return image_id in self.known_inputs or (
            self.state is not None and image_id in self.state.images
        )

    def awaits_image(self, image_id: str) -> bool:
        """Return whether an attempt waits here for an image that it lacks."""
        waiting = (each for each in self.pending.values() if not each.is_ready)
        return image_id in self.reserved.values() or any(
            each.spec.image_id == image_id for each in waiting
        )

    @property
    def may_start(self) -> bool:
        """Whether it may still start a container, which it may after it was declared lost.

        It may not once it knows of that, or once all that it was granted has run out.
        """
        return not self._loss_delivered and clock.monotonic() < self._granted_until

    def connect(self, address: str, described: Described) -> list[AttemptKey]:
        """Use the process of the host that answers at an address.

        Return the attempts that have to be prepared and delivered to it again.
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
        """Forget where the process of the host is: it did not answer, or has gone."""
        self.address = self.session = None
        self.has_answered = False

    def record_contact(self, monotonic: float) -> None:
        """Record a reply that the host sent at `monotonic`, by its own clock."""
        self._clock_base = (monotonic, clock.monotonic())
        self.has_answered = True

    def grant_until(self, allowed_until: float) -> float | None:
        """Return, by the host's clock, when starts end that are allowed until a time of this one.

        Rather too early than too late, because a reply takes time to arrive: clocks of machines
        are not compared. None if the host has not answered yet.
        """
        if self._clock_base is None:
            return None
        at_host, here = self._clock_base
        return at_host + (allowed_until - here)

    async def ask(self, connection: ClusterConnection, request: Callable[[str], object]) -> Any:
        """Return the reply of its present process to the request that is made for its session.

        Raises `HostUnreachable`, also if no process is known, and as `ClusterConnection.call` does.
        """
        if self.address is None or self.session is None:
            raise HostUnreachable(f"{self.name} does not answer")
        return await connection.call(self.address, request(self.session), _ASK_TIMEOUT_S)

    def has_orders(self, *, stopping: bool) -> bool:
        """Return whether there is something to deliver."""
        return (
            bool(self.kills)
            or (stopping and not self._stop_delivered)
            or (self.lost_because is not None and not self._loss_delivered)
            or any(not each.is_delivered for each in self.leaving.values())
            or any(each.is_ready and not each.is_delivered for each in self.pending.values())
        )

    def next_exchange(
        self, setup: RunSetup, allowed_until: float, *, stopping: bool, with_orders: bool
    ) -> Exchange:
        """Return the next request for the host. Its session must be known.

        A host that was declared lost is granted no time, nor is one with a request that leaves out
        orders to start less. Attempts that may run already come first, before others take their
        places.
        """
        assert self.session is not None
        is_lost = self.lost_because is not None
        starts_nothing = is_lost or (bool(self.kills) and not with_orders)
        grant = None if starts_nothing else self.grant_until(allowed_until)
        if grant is not None:
            self._granted_until = max(self._granted_until, allowed_until)
        undelivered = [each.order for each in self.leaving.values() if not each.is_delivered]
        orders = undelivered if with_orders else []
        waiting = [
            each for each in self.pending.values() if each.is_ready and not each.is_delivered
        ]
        waiting.sort(key=lambda each: each.is_new)
        chosen = waiting[:_MAX_ATTEMPTS_PER_EXCHANGE] if with_orders and not is_lost else []
        self._orders += with_orders
        for each in chosen:
            each.is_sent = True
        recalls = [Kill(each.spec, spares_started=True) for each in chosen if each.is_recalled]
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
            attempts=tuple(each.spec for each in chosen),
            delivered_before=frozenset(each.spec.key for each in chosen if each.was_delivered),
            removals=tuple(each for each in orders if isinstance(each, Removal)),
            cancellations=tuple(each for each in orders if isinstance(each, Cancellation)),
            kills=tuple(kills) if with_orders else (),
            received=frozenset(self.received),
            confirmed=frozenset(self.confirmed),
        )

    def forget_recalls(self, key: AttemptKey) -> None:
        """Drop the order to recall an attempt that is submitted again."""
        self.kills = [
            kill for kill in self.kills if kill.spec.key != key or not kill.spares_started
        ]

    def record_delivery(self, request: Exchange) -> None:
        """Record that the host has got the orders of a request."""
        if request.session != self.session:
            return
        for spec in request.attempts:
            if (pending := self.pending.get(spec.key)) is not None:
                pending.is_delivered = True
        left: list[Removal | Cancellation] = [*request.removals, *request.cancellations]
        for order in left:
            if (leaving := self.leaving.get(order.spec.key)) is not None:
                leaving.is_delivered = True
        # Not by equality: an order may have been dropped and given again meanwhile.
        delivered = set(map(id, request.kills))
        self.kills = [kill for kill in self.kills if id(kill) not in delivered]
        self.confirmed -= request.confirmed
        self._is_marked = True
        self._stop_delivered = self._stop_delivered or request.stopping
        self._loss_delivered = self._loss_delivered or request.is_lost
