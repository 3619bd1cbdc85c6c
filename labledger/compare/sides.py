"""Turn the words of `labledger compare` into pairs of sides (A, B).

Words that name an unknown run or variant, or the same side twice, are refused with a hint.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import combinations

from labledger.compare.side_trials import CombinedRuns, Side, read_combined
from labledger.errors import InvalidInput, Problem, RunNotFound
from labledger.ledger.reader import LedgerReader

_USAGE = (
    "RUN, RUN VARIANT, RUN A B, or two sides, each RUN or RUN:VARIANT, where RUN may be several "
    "runs taken as one, RUN1+RUN2"
)


MAX_SIDES = 100
"""The largest number of sides of which all pairs are compared."""


def resolve(reader: LedgerReader, words: Sequence[str]) -> list[tuple[Side, Side]]:
    """Return the pairs of sides (A, B) that the words name.

    - ``RUN``: every treatment (B) against the baseline (A)
    - ``RUN B``: one of its variants (B) against its baseline (A)
    - ``RUN A B``: two variants of a run
    - two sides, each ``RUN`` or ``RUN:VARIANT``: a variant named once is that of both runs; where
      none is named, the variants of the same name, or the only ones

    A run stands for its current grading, ``RUN.g1``, ``RUN.g2``, … are its gradings, and
    ``RUN1+RUN2`` are several runs taken as one. Raises `RunNotFound`, or `InvalidInput`.
    """
    match list(words):
        case [word] if ":" not in word:
            return _treatments(read_combined(reader, word))
        case [word, a, b] if ":" not in word:
            runs = read_combined(reader, word)
            return [_require_different(runs, a, runs, b)]
        case [a, b]:
            return _of_one_run(reader, a, b) or _two_sides(reader, a, b)
        case _:
            raise _refused(f"found {' '.join(words) or 'nothing'}; expected {_USAGE}")


def resolve_all_pairs(reader: LedgerReader, words: Sequence[str]) -> list[tuple[Side, Side]]:
    """Return every pair of the sides that the words name.

    - ``RUN``: all of its variants
    - ``RUN A B C …``: these of its variants
    - two sides or more, each ``RUN`` (all of its variants) or ``RUN:VARIANT``

    Raises as `resolve` does, and where there are fewer than two sides or more than `MAX_SIDES`.
    """
    sides = list(_all_sides(reader, words))
    for index, (runs, name) in enumerate(sides):
        if any((other.name, known) == (runs.name, name) for other, known in sides[:index]):
            raise _refused(f"{_side(runs, name)} is named twice")
    if not 2 <= len(sides) <= MAX_SIDES:
        raise _refused(
            f"all pairs of {len(sides)} variants; expected from 2 to {MAX_SIDES}",
            "name a run with several variants, or several sides",
        )
    return [_require_different(*a, *b) for a, b in combinations(sides, 2)]


def _all_sides(reader: LedgerReader, words: Sequence[str]) -> Iterator[tuple[CombinedRuns, str]]:
    """Yield the runs and the variant of each side."""
    if len(words) > 1 and ":" not in words[0]:
        runs = read_combined(reader, words[0])
        if set(words[1:]) <= set(runs.variant_ids):
            yield from ((runs, name) for name in words[1:])
            return
    for word in words:
        name, colon, variant = word.partition(":")
        runs = read_combined(reader, name)
        yield from ((runs, name) for name in ([variant] if colon else runs.variant_ids))


def _treatments(runs: CombinedRuns) -> list[tuple[Side, Side]]:
    baselines = _baselines(runs)
    treatments = [name for name in runs.variant_ids if name not in baselines]
    if len(baselines) != 1 or not treatments:
        raise _refused(
            f"run {runs.name} has no baseline and treatment to compare; its variants: "
            f"{', '.join(runs.variant_ids)}",
            "name two sides, such as RUN:VARIANT RUN:VARIANT",
        )
    return [(Side(runs.name, baselines[0]), Side(runs.name, name)) for name in treatments]


def _baselines(runs: CombinedRuns) -> list[str]:
    return [variant.variant_id for variant in runs.variants if variant.role == "baseline"]


def _of_one_run(reader: LedgerReader, name: str, variant: str) -> list[tuple[Side, Side]]:
    """Return the baseline of a run and one of its variants, or nothing where two runs are named.

    Raises `InvalidInput` where the second word is neither, but resembles a variant.
    """
    if ":" in name or ":" in variant:
        return []
    try:
        read_combined(reader, variant)
    except RunNotFound:
        runs = read_combined(reader, name)
    else:
        return []
    known = runs.variant_ids
    if variant not in known:
        if difflib.get_close_matches(variant, known, n=1):
            _side(runs, variant)
        return []
    baselines = _baselines(runs)
    if len(baselines) == 1 and baselines != [variant]:
        return [(Side(name, baselines[0]), Side(name, variant))]
    others = ", ".join(name for name in known if name != variant)
    raise _refused(
        f"{variant!r} alone of run {name} cannot be compared: it takes two variants",
        f"name two variants, such as {name} {variant} OTHER; its others: {others}",
    )


def _two_sides(reader: LedgerReader, a: str, b: str) -> list[tuple[Side, Side]]:
    (name_a, _, variant_a), (name_b, _, variant_b) = a.partition(":"), b.partition(":")
    runs_a, runs_b = read_combined(reader, name_a), read_combined(reader, name_b)
    if variant_a or variant_b:
        return [_require_different(runs_a, variant_a or variant_b, runs_b, variant_b or variant_a)]
    if set(runs_a.run_ids) == set(runs_b.run_ids):
        hint = f"`labledger compare {name_a}` compares its variants"
        raise _refused(_named_twice(runs_a, runs_b), hint)
    names, others = runs_a.variant_ids, runs_b.variant_ids
    shared = [name for name in names if name in others]
    if not shared and len(names) == len(others) == 1:
        return [_require_different(runs_a, names[0], runs_b, others[0])]
    if not shared:
        raise _refused(
            f"{name_a} and {name_b} have no variant in common; they have {', '.join(names)} and "
            f"{', '.join(others)}",
            "name two sides, such as RUN:VARIANT RUN:VARIANT",
        )
    return [_require_different(runs_a, name, runs_b, name) for name in shared]


def _named_twice(a: CombinedRuns, b: CombinedRuns) -> str:
    if a.name == b.name:
        return f"run {a.name} is named twice"
    if len(a.runs) > 1:
        return f"{a.name} and {b.name} are the same runs"
    return f"{a.name} and {b.name} are the same grading, the current one"


def _side(runs: CombinedRuns, name: str) -> Side:
    known = runs.variant_ids
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"its variants: {', '.join(known)}"
        raise _refused(f"run {runs.name} has no variant {name!r}", hint)
    return Side(runs.name, name)


def _require_different(
    runs_a: CombinedRuns, name_a: str, runs_b: CombinedRuns, name_b: str
) -> tuple[Side, Side]:
    """Return two sides. Raises `InvalidInput` where they share trials."""
    sides = _side(runs_a, name_a), _side(runs_b, name_b)
    if name_a != name_b:
        return sides
    if set(runs_a.run_ids) == set(runs_b.run_ids):
        raise _refused(f"{sides[0]} is compared with itself", f"expected {_USAGE}")
    # All trials may be the same, graded twice; but a side cannot hold a part of the other.
    both = runs_a.roots & runs_b.roots
    if both and runs_a.roots != runs_b.roots:
        trials = f"the trials of {name_a} in {', '.join(sorted(both))}"
        raise _refused(f"{sides[0]} and {sides[1]} both hold {trials}")
    return sides


def _refused(message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the sides to compare", [Problem("compare", message, hint=hint)])
