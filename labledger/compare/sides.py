"""Find the sides of comparisons from the arguments of `labledger compare`.

A side is a variant of a run, or of several runs that are taken as one sample (`RUN1+RUN2`), such as
the shards of an experiment. Tasks that differ between the runs are never combined. Arguments that
name something unknown, or the same side twice, are refused.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from labledger.errors import InvalidInput, Problem, RunNotFound
from labledger.experiment.experiment_differences import document_differences
from labledger.ledger.database.run_info import Graded, Variant
from labledger.ledger.reader import LedgerReader
from labledger.records.identity import RUN_SEPARATOR
from labledger.text.words import counted

_USAGE = (
    "RUN, RUN VARIANT, RUN A B, or two sides, each RUN or RUN:VARIANT, where RUN may be several "
    "runs taken as one, RUN1+RUN2"
)
MAX_SIDES = 100
"""The largest number of sides for a comparison of all pairs."""
_MAX_NAMED_DIFFERENCES = 5
"""The largest number of differences between two experiments that a sentence names."""


class Side(NamedTuple):
    """One side of a comparison: a variant of a run."""

    run_id: str
    """The run as the user named it: RUN is its current grading, RUN.gN is grading N."""
    variant_id: str

    def __str__(self) -> str:
        return f"{self.run_id}:{self.variant_id}"


@dataclass(frozen=True, slots=True)
class CombinedRuns:
    """One run, or several runs that are taken as one.

    A task and a variant have the trials of all runs together. The ledger's rows do not change.
    """

    name: str
    """The names of the runs, with `RUN_SEPARATOR` between them."""
    runs: tuple[Graded, ...]
    """At least one; no two are gradings of the same trials."""
    differences: tuple[str, ...] = ()
    """A clause for each run whose experiment differs from the first run's experiment."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of all runs; the first run's variants come first."""
        variants: dict[str, Variant] = {}
        for graded in self.runs:
            for variant in graded.run.variants:
                variants.setdefault(variant.variant_id, variant)
        return tuple(variants.values())

    @property
    def variant_ids(self) -> list[str]:
        return [variant.variant_id for variant in self.variants]

    @property
    def treatment_ids(self) -> frozenset[str]:
        return frozenset(v.variant_id for v in self.variants if v.role == "treatment")

    @property
    def roots(self) -> frozenset[str]:
        """The runs whose agents ran."""
        return frozenset(graded.root_id for graded in self.runs)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that hold the rows."""
        return tuple(graded.run.run_id for graded in self.runs)

    def against_baseline(self) -> list[tuple[Side, Side]]:
        """Return the baseline (A) with each treatment (B); empty without exactly one baseline."""
        baselines = [v.variant_id for v in self.variants if v.role == "baseline"]
        if len(baselines) != 1:
            return []
        base = Side(self.name, baselines[0])
        return [(base, Side(self.name, name)) for name in self.variant_ids if name not in baselines]


class ComparisonFamily(NamedTuple):
    """The comparisons that are corrected together, whether a user requests all of them or not.

    A user who requests one after the other tests all of them.
    """

    runs: tuple[frozenset[str], frozenset[str]]
    """For each side, the runs whose agents ran."""
    name: str
    size: int


def family_of(
    a: Side, b: Side, runs_a: CombinedRuns, runs_b: CombinedRuns, *, all_pairs: bool
) -> ComparisonFamily:
    """Return the family of a comparison.

    Within a run, the family compares the baseline with every treatment, or else all pairs of
    variants. Between runs, it compares each treatment with one variant of the other run.
    """
    roots = runs_a.roots, runs_b.roots
    if runs_a.roots == runs_b.roots and a.variant_id != b.variant_id:
        treatments = runs_a.treatment_ids
        is_baseline = [side.variant_id not in treatments for side in (a, b)]
        if not all_pairs and any(is_baseline) and len(runs_a.variants) == len(treatments) + 1:
            return ComparisonFamily(
                roots, f"{counted(len(treatments), 'treatment')} of {a.run_id}", len(treatments)
            )
        pairs = math.comb(len(runs_a.variants), 2)
        return ComparisonFamily(roots, f"{counted(pairs, 'pair')} of variants of {a.run_id}", pairs)
    treatments_a, treatments_b = runs_a.treatment_ids, runs_b.treatment_ids
    if a.variant_id == b.variant_id:
        size = (
            len(treatments_a & treatments_b) if a.variant_id in treatments_a & treatments_b else 1
        )
        return ComparisonFamily(roots, f"{counted(size, 'treatment')} of both runs", size)
    sizes = [
        len(treatments) if side.variant_id in treatments else 1
        for side, treatments in ((a, treatments_a), (b, treatments_b))
    ]
    return ComparisonFamily(roots, f"{counted(max(sizes), 'treatment')} of one run", max(sizes))


def family_sizes(
    requested: Iterable[tuple[ComparisonFamily, tuple[Side, Side], bool]],
) -> dict[ComparisonFamily, int]:
    """Return the number of comparisons in each family, requested or not.

    `requested` has the family and sides of each requested comparison, and whether it is tested.
    Comparisons that are requested but not tested do not count.
    """
    by_family: dict[ComparisonFamily, dict[tuple[Side, Side], bool]] = {}
    for family, sides, is_tested in requested:
        by_family.setdefault(family, {})[sides] = is_tested
    return {
        family: max(family.size - len(pairs), 0) + sum(pairs.values())
        for family, pairs in by_family.items()
    }


def read_combined(reader: LedgerReader, name: str) -> CombinedRuns:
    """Return the runs of a name such as ``RUN``, ``RUN.g1`` or ``RUN1+RUN2``.

    Raises `RunNotFound`, or `InvalidInput` if two of them hold the same trials.
    """
    runs = tuple(map(reader.graded, name.split(RUN_SEPARATOR)))
    by_root: dict[str, Graded] = {}
    for graded in runs:
        earlier = by_root.setdefault(graded.root_id, graded)
        if earlier is not graded:
            same = earlier.name == graded.name
            message = (
                f"{name} holds {graded.name} twice"
                if same
                else f"{earlier.name} and {graded.name} are gradings of the same trials"
            )
            raise InvalidInput("the runs to combine", [Problem(name, message)])
    return CombinedRuns(name, runs, tuple(_differences(reader, runs)))


def _differences(reader: LedgerReader, runs: Sequence[Graded]) -> Iterator[str]:
    """Yield a clause for each run that is not of the same experiment as the first."""
    first = runs[0]
    others = [graded for graded in runs if graded.run.digest != first.run.digest]
    if others:
        of_first = first.run.resolved, reader.task_digests(first.run.run_id)
    for graded in others:
        of_other = graded.run.resolved, reader.task_digests(graded.run.run_id)
        try:
            sentences = document_differences(*of_first, *of_other)
        except (KeyError, TypeError):  # A document from an early version may lack sections.
            sentences = []
        listed = sentences[:_MAX_NAMED_DIFFERENCES]
        if len(sentences) > len(listed):
            listed.append(f"and {counted(len(sentences) - len(listed), 'more difference')}")
        what = "; ".join(listed) or "their digests differ"
        yield f"{graded.name} is not the same experiment as {first.name}: {what}"


# -- the arguments of `labledger compare`


def resolve(reader: LedgerReader, words: Sequence[str]) -> list[tuple[Side, Side]]:
    """Return the pairs of sides (A, B) for the arguments of `labledger compare`.

    - ``RUN``: every treatment (B) against the baseline (A)
    - ``RUN B``: one of its variants (B) against its baseline (A)
    - ``RUN A B``: two variants of a run
    - two sides, each ``RUN`` or ``RUN:VARIANT``. A variant that is named once is used for both
      runs. If none is named, variants with the same name are compared, or else each run's only one.

    ``RUN`` is the run's current grading, ``RUN.g2`` is grading 2, and ``RUN1+RUN2`` are several
    runs taken as one. Raises `RunNotFound`, or `InvalidInput`.
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
    """Return every pair of sides for the arguments of `labledger compare --all-pairs`.

    - ``RUN``: all of its variants
    - ``RUN A B C …``: these of its variants
    - two sides or more, each ``RUN`` (all of its variants) or ``RUN:VARIANT``

    Raises as `resolve` does, and if there are fewer than two sides or more than `MAX_SIDES`.
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
    """Yield each side as its runs and its variant."""
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
    if sides := runs.against_baseline():
        return sides
    raise _refused(
        f"run {runs.name} has no baseline and treatment to compare; its variants: "
        f"{', '.join(runs.variant_ids)}",
        "name two sides, such as RUN:VARIANT RUN:VARIANT",
    )


def _of_one_run(reader: LedgerReader, name: str, variant: str) -> list[tuple[Side, Side]]:
    """Return the baseline of a run and one of its variants; empty if the words name two runs.

    Raises `InvalidInput` if the second word names neither a run nor a variant, but resembles a
    variant.
    """
    if ":" in name or ":" in variant:
        return []
    try:
        read_combined(reader, variant)
    except RunNotFound:
        runs = read_combined(reader, name)
    else:
        return []
    variant_ids = runs.variant_ids
    if variant not in variant_ids:
        if difflib.get_close_matches(variant, variant_ids, n=1):
            _side(runs, variant)
        return []
    if sides := [(a, b) for a, b in runs.against_baseline() if b.variant_id == variant]:
        return sides
    others = ", ".join(name for name in variant_ids if name != variant)
    raise _refused(
        f"a comparison needs two variants; found only {variant!r} of run {name}",
        f"name two variants, such as {name} {variant} OTHER; other variants: {others}",
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
    variant_ids = runs.variant_ids
    if name not in variant_ids:
        close = difflib.get_close_matches(name, variant_ids, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"its variants: {', '.join(variant_ids)}"
        raise _refused(f"run {runs.name} has no variant {name!r}", hint)
    return Side(runs.name, name)


def _require_different(
    runs_a: CombinedRuns, name_a: str, runs_b: CombinedRuns, name_b: str
) -> tuple[Side, Side]:
    """Return two sides. Raises `InvalidInput` if they share trials."""
    sides = _side(runs_a, name_a), _side(runs_b, name_b)
    if name_a != name_b:
        return sides
    if set(runs_a.run_ids) == set(runs_b.run_ids):
        raise _refused(f"{sides[0]} is compared with itself", f"expected {_USAGE}")
    # Both sides may hold the same trials in two gradings, but must not overlap in a part of them.
    both = runs_a.roots & runs_b.roots
    if both and runs_a.roots != runs_b.roots:
        trials = f"the trials of {name_a} in {', '.join(sorted(both))}"
        raise _refused(f"{sides[0]} and {sides[1]} both hold {trials}")
    return sides


def _refused(message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the sides to compare", [Problem("compare", message, hint=hint)])
