"""Which sides are compared: the words of `labledger compare`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from labledger.analysis.pairs import Side
from labledger.errors import InvalidInput, Problem
from labledger.ledger.model import RunInfo
from labledger.ledger.reader import LedgerReader

_USAGE = "RUN, RUN A B, or two sides, each RUN or RUN:VARIANT"


def resolve(reader: LedgerReader, words: Sequence[str]) -> list[tuple[Side, Side]]:
    """The pairs of sides (A, B) that the words name.

    - ``RUN``: every treatment (B) against the baseline (A)
    - ``RUN A B``: two variants of a run
    - two sides, each ``RUN`` or ``RUN:VARIANT``: a variant named once is meant in both; where none
      is, the variants of the same name, or the only ones

    Raises `RunNotFound`, or `InvalidInput`.
    """
    match list(words):
        case [word] if ":" not in word:
            return _treatments(reader.run(word))
        case [word, a, b] if ":" not in word:
            run = reader.run(word)
            return [_different(_side(run, a), _side(run, b))]
        case [a, b]:
            return _two_sides(reader, a, b)
        case _:
            found = " ".join(words) or "nothing"
            raise _refused(f"found {found}; expected {_USAGE}")


def _treatments(run: RunInfo) -> list[tuple[Side, Side]]:
    baselines = [v.variant_id for v in run.variants if v.role == "baseline"]
    treatments = [v.variant_id for v in run.variants if v.role != "baseline"]
    if len(baselines) != 1 or not treatments:
        names = ", ".join(variant.variant_id for variant in run.variants)
        raise _refused(
            f"run {run.run_id} has no baseline and treatment to compare; its variants: {names}",
            "name two sides, such as RUN:VARIANT RUN:VARIANT",
        )
    return [(Side(run.run_id, baselines[0]), Side(run.run_id, name)) for name in treatments]


def _two_sides(reader: LedgerReader, a: str, b: str) -> list[tuple[Side, Side]]:
    (run_a, _, name_a), (run_b, _, name_b) = a.partition(":"), b.partition(":")
    one, other = reader.run(run_a), reader.run(run_b)
    if name_a or name_b:
        return [_different(_side(one, name_a or name_b), _side(other, name_b or name_a))]
    if run_a == run_b:
        raise _refused(f"run {run_a} is named twice", f"`labledger compare {run_a}` compares it")
    names, others = ([v.variant_id for v in run.variants] for run in (one, other))
    shared = [name for name in names if name in others]
    if not shared and len(names) == len(others) == 1:
        return [(Side(run_a, names[0]), Side(run_b, others[0]))]
    if not shared:
        raise _refused(
            f"{run_a} and {run_b} have no variant in common; they have {', '.join(names)} and "
            f"{', '.join(others)}",
            "name two sides, such as RUN:VARIANT RUN:VARIANT",
        )
    return [(Side(run_a, name), Side(run_b, name)) for name in shared]


def _side(run: RunInfo, name: str) -> Side:
    known = [variant.variant_id for variant in run.variants]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"its variants: {', '.join(known)}"
        raise _refused(f"run {run.run_id} has no variant {name!r}", hint)
    return Side(run.run_id, name)


def _different(a: Side, b: Side) -> tuple[Side, Side]:
    if a == b:
        raise _refused(f"{a} is compared with itself", f"expected {_USAGE}")
    return a, b


def _refused(message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the sides to compare", [Problem("compare", message, hint=hint)])
