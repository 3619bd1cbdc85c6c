"""Messages as the bytes that a transport carries.

What most messages of a run repeat, its setup and the plan of a variant, is pickled once by whoever
sends it, and read once by whoever gets it: both sides handle many small messages.
"""

from __future__ import annotations

import copyreg
import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from io import BytesIO
from operator import attrgetter
from typing import Any

from labledger.cluster.host_messages import Exchange, RunSetup
from labledger.experiment.inputs.task_row import Task
from labledger.records.identity import Slot
from labledger.trial.attempt_spec import AttemptSpec, TrialPlan

_PLAIN, _COMPRESSED = b"p", b"z"
_MAX_COMPRESSED_BYTES = 1 << 20
_MAX_SHARED = 128
"""How many setups and plans each side keeps."""

_sent: dict[int, tuple[object, bytes]] = {}
"""The setups and plans that were sent, with their bytes, by `id`. Each is kept so that no other
object can get its id."""


def encode(message: object) -> bytes:
    """Return a message as bytes.

    Compressed unless it is large, so that no log of a transport shows what is in it.
    """
    content = _dump(message, _REDUCERS)
    if len(content) > _MAX_COMPRESSED_BYTES:
        return _PLAIN + content
    return _COMPRESSED + zlib.compress(content, 1)


def decode(content: bytes) -> Any:
    """Return the message in `content`, which must come from a peer that TLS has identified."""
    body = memoryview(content)[1:]
    plain = zlib.decompress(body) if content[:1] == _COMPRESSED else body
    return pickle.loads(plain)  # noqa: S301


def _dump(instance: object, reducers: Mapping[type, Callable[[Any], Any]]) -> bytes:
    content = BytesIO()
    pickler = pickle.Pickler(content, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = reducers
    pickler.dump(instance)
    return content.getvalue()


def _by_fields(kind: type) -> Callable[[Any], tuple[type, tuple[object, ...]]]:
    """Return a reducer for a dataclass: the reader calls the class with the fields of `__init__`.

    What pickle does by itself for a frozen dataclass takes longer, and includes derived fields.
    """
    values = attrgetter(*(each.name for each in fields(kind) if each.init))
    return lambda instance: (kind, values(instance))


def _by_kept_bytes(shared: TrialPlan | RunSetup) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """Reduce a setup or a plan to bytes that are made once."""
    kept = _sent.get(id(shared))
    if kept is None:
        if len(_sent) >= _MAX_SHARED:
            _sent.clear()
        kept = _sent[id(shared)] = shared, _dump(shared, copyreg.dispatch_table)
    return load_shared, (kept[1],)


@lru_cache(_MAX_SHARED)
def load_shared(content: bytes) -> Any:
    """Return the setup or plan in `content`: one object for all messages, which nobody changes.

    Pickled messages contain the name of this function.
    """
    return pickle.loads(content)  # noqa: S301


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    AttemptSpec: _by_fields(AttemptSpec),
    Slot: _by_fields(Slot),
    Task: _by_fields(Task),
    Exchange: _by_fields(Exchange),
    TrialPlan: _by_kept_bytes,
    RunSetup: _by_kept_bytes,
}
