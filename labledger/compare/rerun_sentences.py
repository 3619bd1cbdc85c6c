"""Say in sentences how many slots of a run were run again or cancelled, by whom, and why.

Choosing which results to repeat can bias them: a rerun of slots that had a verdict is said with the
reason that was given for it, in the head of every report and every comparison of the run. Apart
from the other sentences, since `labledger status` shows these and must start fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from labledger.ledger.database.model import CancelledSlots, Rerun
from labledger.records.outcomes import SlotStatus
from labledger.text import count, counted


def rerun_sentences(run_id: str, reruns: Sequence[Rerun]) -> tuple[str, ...]:
    """Return what to know of the reruns of a run, for the head of what is said about its results.

    Args:
        run_id: What to call the run.
        reruns: Those of `Ledger.reruns`.

    Returns:
        A sentence about all slots without a verdict that were run again, if there are any, and one
        for each rerun of slots despite their verdicts, with the reason that was given.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     for sentence in labledger.rerun_sentences("demo", ledger.reruns("demo")):
        ...         print(sentence)
    """
    return tuple(_sentences(run_id, reruns))


def cancelled_sentences(run_id: str, cancelled: Iterable[CancelledSlots]) -> tuple[str, ...]:
    """Return which slots of a run people cancelled, and how they count, a sentence for each way.

    Args:
        run_id: What to call the run.
        cancelled: Those of `Ledger.cancelled`.

    Example:
        >>> import labledger
        >>> with labledger.open_ledger() as ledger:
        ...     for sentence in labledger.cancelled_sentences("demo", ledger.cancelled("demo")):
        ...         print(sentence)
    """
    return tuple(
        f"{counted(each.slots, 'slot')} of {each.variant_id} in {run_id} "
        f"{'was' if each.slots == 1 else 'were'} {each.reason} {_HOW_CANCELLED[each.status]}"
        for each in cancelled
    )


_HOW_CANCELLED = {
    SlotStatus.CANCELLED: "before anything of it ran, and left out of the pass rate",
    SlotStatus.AGENT_ERROR: "while running, and did not pass",
    SlotStatus.INFRA_ERROR: "before another attempt, and left out of the pass rate",
}


def _sentences(run_id: str, reruns: Sequence[Rerun]) -> Iterator[str]:
    plain = [rerun for rerun in reruns if not rerun.despite_verdict]
    if plain:
        yield f"{_what(run_id, plain)}; they had no verdict.{_given(plain)}"
    for rerun in reruns:
        if rerun.despite_verdict:
            yield (
                f"{_what(run_id, [rerun])}, chosen despite their verdicts, which can bias the "
                f"results. The reason given: {rerun.because or 'none'}"
            )


def _what(run_id: str, reruns: Sequence[Rerun]) -> str:
    """Return such as ``3 slots of demo were run again (2 infra_error, 1 setup_error)``."""
    slots = sum(rerun.slots for rerun in reruns)
    statuses: Counter[str] = Counter()
    for rerun in reruns:
        statuses.update(rerun.superseded)
    listed = ", ".join(f"{count(n)} {status}" for status, n in sorted(statuses.items()))
    verb = "was" if slots == 1 else "were"
    text = f"{counted(slots, 'slot')} of {run_id} {verb} run again ({listed})"
    pending = slots - sum(rerun.committed for rerun in reruns)
    return f"{text}, of which {count(pending)} not committed yet" if pending else text


def _given(reruns: Sequence[Rerun]) -> str:
    """Return the reasons that were given, as a sentence; nothing if there are none."""
    reasons = [*dict.fromkeys(rerun.because for rerun in reruns if rerun.because)]
    return f" The reason given: {'; '.join(reasons)}" if reasons else ""
