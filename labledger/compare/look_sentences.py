"""Sentences about other looks at an experiment, corrections, and results that were chosen.

`compare.earlier_looks` finds the facts. Decisions, headlines and rankings add these sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from labledger.compare.compare_options import Validity
from labledger.compare.comparison_document import Compared, Comparison, LookKind, Looks
from labledger.text import count, counted

_MAX_NAMED_RUNS = 5
"""How many other runs of an experiment a sentence names."""


def correction(compared: Compared, document: Comparison) -> str:
    """Return a clause about corrections of the interval and p value; empty without any."""
    price = 1 if compared.looks is None else compared.looks.price
    look = f"the look at the experiment (p × {price:,})" if price > 1 else ""
    several = family(compared, document) if document.family > 1 else ""
    reasons = " and ".join(filter(None, (several, look)))
    return f", corrected for {reasons}" if reasons else ""


def family(compared: Compared, document: Comparison) -> str:
    """Return the comparisons for which a comparison is corrected."""
    if compared.family_of is None:
        return f"{document.family} comparisons"
    others = "" if compared.family_of.startswith(f"{document.family} ") else " and others"
    return f"the {compared.family_of}{others}"


def by_verdict(compared: Compared) -> str:
    """Return a clause that says how results were chosen."""
    runs = ", ".join(compared.chosen_by_verdict)
    return f"slots of {runs} were run again despite their verdicts (`rerun --despite-verdict`)"


def looks(compared: Compared) -> tuple[str, ...]:
    """Return sentences about other looks at the experiment, and about results that were chosen."""
    found = compared.looks
    if compared.chosen_by_verdict:
        text = by_verdict(compared)
        return (f"{text[0].upper()}{text[1:]}: comparisons with them have no verdict.",)
    if found is None or compared.difference is None:
        return ()
    sentences = [] if found.kind is LookKind.FIRST else [_further_look(found, compared)]
    if found.later and found.kind is LookKind.FIRST:
        runs = counted(len(found.later), "later run")
        sentences.append(f"The ledger has {runs} of this experiment: {_named(found.later)}.")
    if found.deleted:
        what = "run with the experiment's id was", "runs with the experiment's id were"
        sentences.append(
            f"{count(found.deleted)} earlier {what[found.deleted > 1]} deleted: whether the ledger "
            "had results of the same experiment before is not known."
        )
    if found.imported:
        verb = "was" if len(found.imported) == 1 else "were"
        sentences.append(
            f"{_named(found.imported)} {verb} imported: whether there are other runs of the "
            "experiment where it comes from is not known."
        )
    return tuple(sentences)


def _further_look(found: Looks, compared: Compared) -> str:
    if found.kind is LookKind.CHOSEN:
        text = (
            f"{found.last} is compared without {counted(len(found.omitted), 'other run')} of the "
            f"same experiment ({_named(found.omitted)})"
        )
        why = "runs can be chosen by their results"
    elif found.planned > 1:
        text = (
            f"{counted(found.planned, 'run')} of the experiment were declared, and not exactly "
            "these are compared"
        )
        why = "a run can be the last because of its results"
    else:
        text = (
            f"{found.last} began when earlier runs that are compared had results, and the number "
            "of runs was not declared before the first (`design.planned_runs`)"
        )
        why = "a run can be the last because of its results"
    if found.kind is LookKind.ADDED and compared.validity == Validity.ANYTIME:
        return (
            f"{text}: interval and p value hold at every look, and the p value is multiplied by "
            f"{found.price} for the look at the first run alone."
        )
    if found.price > 1:
        return f"{text}: the p value is multiplied by {found.price:,}, because {why}."
    return f"{text}."


def _named(run_ids: Sequence[str]) -> str:
    surplus = len(run_ids) - _MAX_NAMED_RUNS
    more = f" and {count(surplus)} more" if surplus > 0 else ""
    return f"{', '.join(run_ids[:_MAX_NAMED_RUNS])}{more}"
