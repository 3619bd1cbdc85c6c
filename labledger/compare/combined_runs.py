"""Several runs taken as one: `RUN1+RUN2` in `compare` and `report`.

Shards of an experiment, or the same experiment run on several days, are one sample: the trials of
a task and a variant are those of all runs together. The runs keep their rows. Where the runs'
experiments differ, `differences` says in what; a task that differs is never combined
(`side_trials`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labledger.errors import InvalidInput, Problem
from labledger.experiment.changes import document_differences
from labledger.ledger.database.model import Graded, Variant
from labledger.ledger.reader import LedgerReader
from labledger.records.identity import RUN_SEPARATOR
from labledger.text.phrases import counted

_MAX_NAMED_DIFFERENCES = 5
"""How many differences of two experiments a sentence names."""


@dataclass(frozen=True, slots=True)
class CombinedRuns:
    """One run, or several that are taken as one, as they were named."""

    name: str
    """The names of the runs, with `RUN_SEPARATOR` between them."""
    runs: tuple[Graded, ...]
    """At least one; no two are gradings of the same trials."""
    differences: tuple[str, ...] = ()
    """A clause for each run whose experiment differs from that of the first."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of all runs; those of the first run come first."""
        variants: dict[str, Variant] = {}
        for graded in self.runs:
            for variant in graded.run.variants:
                variants.setdefault(variant.variant_id, variant)
        return tuple(variants.values())

    @property
    def variant_ids(self) -> list[str]:
        return [variant.variant_id for variant in self.variants]

    @property
    def roots(self) -> frozenset[str]:
        """The runs whose agents ran."""
        return frozenset(graded.root_id for graded in self.runs)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that hold the rows."""
        return tuple(graded.run.run_id for graded in self.runs)


def read_combined(reader: LedgerReader, name: str) -> CombinedRuns:
    """Return the runs that a name such as ``RUN``, ``RUN.g1`` or ``RUN1+RUN2`` stands for.

    Raises `RunNotFound`, or `InvalidInput` where two of them are the same trials.
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
    if all(graded.run.digest == runs[0].run.digest for graded in runs):
        return
    first = runs[0]
    of_first = first.run.resolved, reader.task_digests(first.run.run_id)
    for graded in runs[1:]:
        if graded.run.digest == first.run.digest:
            continue
        of_other = graded.run.resolved, reader.task_digests(graded.run.run_id)
        try:
            sentences = document_differences(*of_first, *of_other)
        except (KeyError, TypeError):  # A document of an early version may lack sections.
            sentences = []
        listed = sentences[:_MAX_NAMED_DIFFERENCES]
        if len(sentences) > len(listed):
            listed.append(f"and {counted(len(sentences) - len(listed), 'more difference')}")
        what = "; ".join(listed) or "their digests differ"
        yield f"{graded.name} is not the same experiment as {first.name}: {what}"
