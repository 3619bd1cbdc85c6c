"""Which sides are compared: the words of `labledger compare`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from labledger.compare.pairs import Side
from labledger.errors import InvalidInput, Problem, RunNotFound
from labledger.ledger.database.model import Graded
from labledger.ledger.reader import LedgerReader

_USAGE = "RUN, RUN VARIANT, RUN A B, or two sides, each RUN or RUN:VARIANT"


def resolve(reader: LedgerReader, words: Sequence[str]) -> list[tuple[Side, Side]]:
    """The pairs of sides (A, B) that the words name.

    - ``RUN``: every treatment (B) against the baseline (A)
    - ``RUN B``: one of its variants (B) against its baseline (A)
    - ``RUN A B``: two variants of a run
    - two sides, each ``RUN`` or ``RUN:VARIANT``: a variant named once is meant in both; where none
      is, the variants of the same name, or the only ones

    A run is what counts of it, and ``RUN.g1``, ``RUN.g2``, … are its gradings. Raises
    `RunNotFound`, or `InvalidInput`.
    """
    match list(words):
        case [word] if ":" not in word:
            return _treatments(reader.graded(word))
        case [word, a, b] if ":" not in word:
            graded = reader.graded(word)
            return [_different(graded, a, graded, b)]
        case [a, b]:
            return _of_one_run(reader, a, b) or _two_sides(reader, a, b)
        case _:
            found = " ".join(words) or "nothing"
            raise _refused(f"found {found}; expected {_USAGE}")


def _treatments(graded: Graded) -> list[tuple[Side, Side]]:
    run = graded.run
    baselines = [v.variant_id for v in run.variants if v.role == "baseline"]
    treatments = [v.variant_id for v in run.variants if v.role != "baseline"]
    if len(baselines) != 1 or not treatments:
        names = ", ".join(variant.variant_id for variant in run.variants)
        raise _refused(
            f"run {graded.name} has no baseline and treatment to compare; its variants: {names}",
            "name two sides, such as RUN:VARIANT RUN:VARIANT",
        )
    return [(Side(graded.name, baselines[0]), Side(graded.name, name)) for name in treatments]


def _of_one_run(reader: LedgerReader, name: str, variant: str) -> list[tuple[Side, Side]]:
    """The baseline of a run against one of its variants; nothing where two runs are meant.

    Raises `InvalidInput` where no run and no variant, but nearly a variant, is named.
    """
    if ":" in name or ":" in variant:
        return []
    try:
        reader.graded(variant)
    except RunNotFound:
        graded = reader.graded(name)
    else:
        return []
    known = [one.variant_id for one in graded.run.variants]
    if variant not in known:
        if difflib.get_close_matches(variant, known, n=1):
            _side(graded, variant)
        return []
    baselines = [one.variant_id for one in graded.run.variants if one.role == "baseline"]
    if len(baselines) == 1 and baselines != [variant]:
        return [(Side(name, baselines[0]), Side(name, variant))]
    others = ", ".join(one for one in known if one != variant)
    raise _refused(
        f"{variant!r} is a variant of run {name}, and what to compare it with is not said",
        f"name two variants, such as {name} {variant} OTHER; its others: {others}",
    )


def _two_sides(reader: LedgerReader, a: str, b: str) -> list[tuple[Side, Side]]:
    (run_a, _, name_a), (run_b, _, name_b) = a.partition(":"), b.partition(":")
    one, other = reader.graded(run_a), reader.graded(run_b)
    if name_a or name_b:
        return [_different(one, name_a or name_b, other, name_b or name_a)]
    if one.run.run_no == other.run.run_no:
        raise _refused(_twice(one, other), f"`labledger compare {run_a}` compares its variants")
    names, others = ([v.variant_id for v in graded.run.variants] for graded in (one, other))
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


def _twice(one: Graded, other: Graded) -> str:
    if one.name == other.name:
        return f"run {one.name} is named twice"
    return f"{one.name} and {other.name} are the same grading, which counts"


def _side(graded: Graded, name: str) -> Side:
    known = [variant.variant_id for variant in graded.run.variants]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"its variants: {', '.join(known)}"
        raise _refused(f"run {graded.name} has no variant {name!r}", hint)
    return Side(graded.name, name)


def _different(one: Graded, a: str, other: Graded, b: str) -> tuple[Side, Side]:
    sides = _side(one, a), _side(other, b)
    if (one.run.run_no, a) == (other.run.run_no, b):
        raise _refused(f"{sides[0]} is compared with itself", f"expected {_USAGE}")
    return sides


def _refused(message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the sides to compare", [Problem("compare", message, hint=hint)])
