"""How many tokens a request can have, by what the provider counted for the one that it continues.

A byte of text is a token at most, so that a request can always be reserved by its bytes. That is
some four times too much, and agents send the same conversation again and again. So the gateway
remembers, for the last requests of an attempt, how many tokens the provider counted. A request that
begins with a remembered one has at most these tokens and one for each byte that is new.

Why this is an upper bound:

- Providers render messages one after the other, with marks between them that no text can forge. The
  tokens of a conversation are the sum over its turns, its tools and the system's words. So they
  grow by no more than the bytes of what is added.
- A remembered request counts only for a continuation: the same provider, API and model, the same
  settings, such as thinking and the choice of tools, and all of its turns, in their order, at the
  beginning. What a provider leaves out of older turns, such as thoughts, it leaves out of a
  longer conversation, too. Requests that let the provider shorten or extend the conversation, by
  clearing, compaction, stored state or tools of its own, are not remembered.
- Tools and parts of the system's words may change: those that are equal are known, and the bytes of
  all others are new. Tools that are loaded late must all be equal, and are never known.
- The known part is credited with the fewest bytes that its JSON can have. Spaces, escapes and
  everything that is left out of the comparison, such as marks for caches, count as new.
- Where the same side speaks before and after the seam, some providers join both texts. The last
  turn before the seam then counts by its bytes once more.
- `HIDDEN_TOKENS` are added again, because what a provider adds by itself may change.
- Numbers that are too small to be true, below a token for `MOST_BYTES` bytes of text, are not
  remembered: some servers leave out what they had in a cache. If a provider answers by another
  model than before, nothing is known of that model any more.

Images count by the table of `media` when they are new, and are in the provider's count afterwards.

All of this is in memory, as digests, and bounded. A gateway that starts again reserves by bytes
until each conversation has had an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from labledger.gateway.families.request_trace import Digest, RequestTrace, TracedTurn
from labledger.records.model_calls import CallState, ModelCall

_KEPT = 64
"""How many requests of an attempt are remembered."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A request whose tokens the provider counted."""

    tokens: int
    pieces: Mapping[Digest, int]
    last: TracedTurn


class KnownRequests:
    """The remembered requests of one attempt. For one event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, Digest, Digest], _Known] = OrderedDict()
        self._served: dict[tuple[str, str], set[str]] = {}
        """The first two models that answered for each that was asked."""

    def most_tokens(self, trace: RequestTrace, betas: str) -> int | None:
        """Return the most tokens that a request can have by what is known; None if nothing is.

        `betas` are the headers that change how a provider reads it.
        """
        found = []
        more = 0
        for number in range(len(trace.turns) - 1, -1, -1):
            turn = trace.turns[number]
            known = self._known.get((betas, trace.setting, turn.digest))
            if known is not None:
                found.append(known.tokens + more + _new_bytes(trace, number, known))
            more += turn.more_tokens
        return min(found) + trace.overhead if found else None

    def note(self, trace: RequestTrace, betas: str, call: ModelCall, tokens: int) -> None:
        """Remember how many tokens a provider counted for a request."""
        if call.state not in {CallState.ANSWERED, CallState.CUT}:
            return
        if self._is_exchanged(call):
            self._known.clear()
            return
        key = betas, trace.setting, trace.turns[-1].digest
        # Requests of one agent have the same tools: one copy of them is kept.
        alike = (known.pieces for known in self._known.values() if known.pieces == trace.pieces)
        known = _Known(tokens, next(alike, trace.pieces), trace.turns[-1])
        self._known.pop(key, None)
        self._known[key] = known
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _is_exchanged(self, call: ModelCall) -> bool:
        """Note which model answered, and return whether another one did before."""
        served = self._served.setdefault((call.provider, call.model), set())
        if call.model_served is not None and len(served) < 2:
            served.add(call.model_served)
        return len(served) > 1


def _new_bytes(trace: RequestTrace, number: int, known: _Known) -> int:
    """Return how many bytes a request has beside a known one, which ends at a turn.

    Whether media among them may be more tokens than bytes is left out.
    """
    same = sum(size for digest, size in trace.pieces.items() if digest in known.pieces)
    new = trace.size - trace.turns[number].size_so_far - same
    after = trace.turns[number + 1 : number + 2]
    if after and after[0].by_model == known.last.by_model:
        new += known.last.size
    return new
