"""The comparisons of a report, and a word about each that could not be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labledger.compare.compare import compare_family
from labledger.compare.options import CompareOptions
from labledger.errors import ExtraMissing, InvalidInput, Problem
from labledger.ledger.database.model import Graded
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject
from labledger.report.options import ReportOptions


@dataclass(frozen=True, slots=True)
class Compared:
    """Every comparison as its document, and what is missing and why."""

    documents: tuple[JsonObject, ...] = ()
    missing: tuple[str, ...] = ()


def compare_all(reader: LedgerReader, graded: Graded, options: ReportOptions) -> Compared:
    """What `options.compare` asks for, or the baseline with every treatment, where there are any.

    All of them are one family and are corrected for how many they are. Without the extra
    `analysis` nothing is compared, and `missing` says so. Raises `RunNotFound` or `InvalidInput`.
    """
    asked = [sides_of(graded, words) for words in options.compare] or _by_default(graded)
    wanted = CompareOptions(confidence=options.confidence, estimand=options.estimand)
    try:
        found = compare_family(reader, asked, wanted)
    except ExtraMissing as error:
        return Compared(
            missing=(f"No comparisons and no intervals: {error.message}; {error.hint}",)
        )
    return Compared(tuple(comparison.as_json() for comparison in found))


def sides_of(graded: Graded, words: str) -> list[str]:
    """The words of `labledger compare` for one `--compare`.

    ``OTHER`` (a RUN or RUN:VARIANT) is compared with this run: OTHER is A, this run is B.
    ``A B`` are two variants of this run, or two sides, each RUN or RUN:VARIANT.
    """
    match words.split():
        case [other]:
            return [other, graded.name]
        case [a, b] if {a, b} <= {variant.variant_id for variant in graded.run.variants}:
            return [graded.name, a, b]
        case [a, b]:
            return [a, b]
    message = f"found {words!r}; expected another run, two variants such as 'A B', or two sides"
    raise InvalidInput("what to compare", [Problem("--compare", message)])


def _by_default(graded: Graded) -> Sequence[list[str]]:
    roles = [variant.role for variant in graded.run.variants]
    return [[graded.name]] if roles.count("baseline") == 1 and len(roles) > 1 else []
