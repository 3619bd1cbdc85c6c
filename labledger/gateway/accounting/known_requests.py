"""Bound the tokens of a request by the provider's count of the request that it continues.

A byte of text is at most one token, but this bound is about four times too high. A request that
begins with a counted request has at most the counted tokens, plus one token for each new byte.
`KnownRequests` explains why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from labledger.gateway.accounting.caps import WorstCase, counted_request
from labledger.gateway.families.family import Asked
from labledger.gateway.families.request_trace import Digest, RequestTrace, TracedTurn
from labledger.gateway.families.requests.media import STORED_ITEM_TOKENS
from labledger.records.model_calls import CallState, ModelCall

_KEPT = 64
"""The most requests of an attempt that are remembered."""
_KEPT_ITEMS = 4_096


@dataclass(frozen=True, slots=True)
class _Known:
    """A request whose tokens the provider counted."""

    tokens: int
    pieces: Mapping[Digest, int]
    last: TracedTurn


class KnownRequests:
    """The remembered requests of one attempt. For one event loop.

    Why the result is an upper bound:

    - Providers render messages one after the other, with marks between them that no text can forge.
      So the tokens of a conversation are the sum over its turns, its tools and the system prompt,
      and grow by no more than the bytes of the addition.
    - A remembered request counts only for a continuation. Provider, API, model and settings, such
      as thinking and the choice of tools, must be the same, and all of its turns must come first,
      in order. If a provider leaves out older turns, such as thoughts, it also does so in a longer
      conversation. Requests that let the provider shorten or extend the conversation, by clearing,
      compaction, stored state or its own tools, are not remembered.
    - Tools and parts of the system prompt may change. Equal ones are known, and the bytes of all
      others are new. Tools that are loaded late must all be equal, and are never known.
    - The known part is credited with the fewest bytes that its JSON can have. Spaces, escapes and
      everything that is not compared, such as marks for caches, count as new.
    - If the same side speaks before and after the seam, some providers join both texts. The last
      turn before the seam then counts by its bytes once more.
    - `HIDDEN_TOKENS` are added again, because the provider's own additions may change.
    - A count below one token for `MOST_BYTES` bytes of text is too small to be true, and is not
      remembered: some servers leave out cached tokens. If another model answers than before, the
      counts of the earlier model are forgotten.

    An item that only names stored content, such as reasoning, counts with the output of the answer
    that contained it. If the gateway did not see that answer, the item counts with the largest
    output. New images count by the table of `media`; later counts of the provider include them.

    Everything is bounded and in memory, as digests. A restarted gateway reserves by bytes until
    each conversation has had an answer.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, Digest, Digest], _Known] = OrderedDict()
        self._items: OrderedDict[str, int] = OrderedDict()
        """The most tokens of items that the provider may have stored."""
        self._served: dict[tuple[str, str], set[str]] = {}
        """For each requested model, the first two models that answered."""

    def most_tokens(self, trace: RequestTrace, betas: str) -> int | None:
        """Return the most tokens that a request can have; None if nothing is known about it.

        `betas` are the headers that change how a provider reads a request.
        """
        bounds = []
        more = 0
        for number in range(len(trace.turns) - 1, -1, -1):
            turn = trace.turns[number]
            known = self._known.get((betas, trace.setting, turn.digest))
            if known is not None:
                bounds.append(known.tokens + more + _new_bytes(trace, number, known))
            stored = self._items.get(turn.stored or "", turn.more_tokens)
            more += min(turn.more_tokens, stored)
        return min(bounds) + trace.overhead if bounds else None

    def bounded(self, asked: Asked) -> Asked:
        """Return a request whose named stored items count with their known tokens."""
        if not asked.stored:
            return asked
        tokens = sum(self._items.get(name, STORED_ITEM_TOKENS) for name in asked.stored)
        fewer = max(0, asked.stored_tokens - tokens)
        return replace(asked, request_tokens=asked.request_tokens - fewer)

    def note_answer(
        self,
        trace: RequestTrace | None,
        betas: str,
        worst: WorstCase,
        item_names: Iterable[str],
        call: ModelCall,
    ) -> None:
        """Remember the counts of a call that has ended, for later requests."""
        counted = counted_request(call, worst)
        if trace is not None and counted is not None:
            self.note(trace, betas, call, counted.request)
        if call.usage is not None:
            self._note_items(item_names, call.usage.output)

    def _note_items(self, names: Iterable[str], tokens: int) -> None:
        """Remember the items of an answer. None of them has more tokens than the answer."""
        for name in names:
            self._items.pop(name, None)
            self._items[name] = tokens
        while len(self._items) > _KEPT_ITEMS:
            self._items.popitem(last=False)

    def note(self, trace: RequestTrace, betas: str, call: ModelCall, tokens: int) -> None:
        """Remember how many tokens a provider counted for a request."""
        if call.state not in {CallState.ANSWERED, CallState.CUT}:
            return
        if self._is_exchanged(call):
            self._known.clear()
            return
        key = betas, trace.setting, trace.turns[-1].digest
        # Requests of one agent share their tools, so keep one copy of them.
        alike = (known.pieces for known in self._known.values() if known.pieces == trace.pieces)
        known = _Known(tokens, next(alike, trace.pieces), trace.turns[-1])
        self._known.pop(key, None)
        self._known[key] = known
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _is_exchanged(self, call: ModelCall) -> bool:
        """Note which model answered, and return whether another model did before."""
        served = self._served.setdefault((call.provider, call.model), set())
        if call.model_served is not None and len(served) < 2:
            served.add(call.model_served)
        return len(served) > 1


def _new_bytes(trace: RequestTrace, number: int, known: _Known) -> int:
    """Return how many bytes a request has beyond a known request that ends at turn `number`.

    Does not consider that new media may count more tokens than bytes.
    """
    same = sum(size for digest, size in trace.pieces.items() if digest in known.pieces)
    new = trace.size - trace.turns[number].size_so_far - same
    after = trace.turns[number + 1 : number + 2]
    if after and after[0].by_model == known.last.by_model:
        new += known.last.size
    return new
