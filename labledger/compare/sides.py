"""Turn the words of `labledger compare` into pairs of sides (A, B).

Words that name an unknown run or variant, or the same side twice, are refused with a hint.
`compare.compare` calls `resolve`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from labledger.compare.side_trials import Side
from labledger.errors import InvalidInput, Problem, RunNotFound
from labledger.ledger.database.model import Graded
from labledger.ledger.reader import LedgerReader

_USAGE = "RUN, RUN VARIANT, RUN A B, or two sides, each RUN or RUN:VARIANT"


def resolve(reader: LedgerReader, words: Sequence[str]) -> list[tuple[Side, Side]]:
    """Return the pairs of sides (A, B) that the words name.

    - ``RUN``: every treatment (B) against the baseline (A)
    - ``RUN B``: one of its variants (B) against its baseline (A)
    - ``RUN A B``: two variants of a run
    - two sides, each ``RUN`` or ``RUN:VARIANT``: a variant named once is that of both runs; where
      none is named, the variants of the same name, or the only ones

    A run stands for its current grading, and ``RUN.g1``, ``RUN.g2``, … are its gradings. Raises
    `RunNotFound`, or `InvalidInput`.
    """
    match list(words):
        case [word] if ":" not in word:
            return _treatments(reader.graded(word))
        case [word, a, b] if ":" not in word:
            graded = reader.graded(word)
            return [_require_different(graded, a, graded, b)]
        case [a, b]:
            return _of_one_run(reader, a, b) or _two_sides(reader, a, b)
        case _:
            raise _refused(f"found {' '.join(words) or 'nothing'}; expected {_USAGE}")


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
    """Return the baseline of a run and one of its variants, or nothing where two runs are named.

    Raises `InvalidInput` where the second word is neither, but resembles a variant.
    """
    if ":" in name or ":" in variant:
        return []
    try:
        reader.graded(variant)
    except RunNotFound:
        graded = reader.graded(name)
    else:
        return []
    known = [v.variant_id for v in graded.run.variants]
    if variant not in known:
        if difflib.get_close_matches(variant, known, n=1):
            _side(graded, variant)
        return []
    baselines = [v.variant_id for v in graded.run.variants if v.role == "baseline"]
    if len(baselines) == 1 and baselines != [variant]:
        return [(Side(name, baselines[0]), Side(name, variant))]
    others = ", ".join(name for name in known if name != variant)
    raise _refused(
        f"{variant!r} alone of run {name} cannot be compared: it takes two variants",
        f"name two variants, such as {name} {variant} OTHER; its others: {others}",
    )


def _two_sides(reader: LedgerReader, a: str, b: str) -> list[tuple[Side, Side]]:
    (run_a, _, name_a), (run_b, _, name_b) = a.partition(":"), b.partition(":")
    a_graded, b_graded = reader.graded(run_a), reader.graded(run_b)
    if name_a or name_b:
        return [_require_different(a_graded, name_a or name_b, b_graded, name_b or name_a)]
    if a_graded.run.run_no == b_graded.run.run_no:
        hint = f"`labledger compare {run_a}` compares its variants"
        raise _refused(_named_twice(a_graded, b_graded), hint)
    names, others = ([v.variant_id for v in g.run.variants] for g in (a_graded, b_graded))
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


def _named_twice(a: Graded, b: Graded) -> str:
    if a.name == b.name:
        return f"run {a.name} is named twice"
    return f"{a.name} and {b.name} are the same grading, the current one"


def _side(graded: Graded, name: str) -> Side:
    known = [variant.variant_id for variant in graded.run.variants]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"its variants: {', '.join(known)}"
        raise _refused(f"run {graded.name} has no variant {name!r}", hint)
    return Side(graded.name, name)


def _require_different(
    a_graded: Graded, a_name: str, b_graded: Graded, b_name: str
) -> tuple[Side, Side]:
    sides = _side(a_graded, a_name), _side(b_graded, b_name)
    if (a_graded.run.run_no, a_name) == (b_graded.run.run_no, b_name):
        raise _refused(f"{sides[0]} is compared with itself", f"expected {_USAGE}")
    return sides


def _refused(message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the sides to compare", [Problem("compare", message, hint=hint)])
