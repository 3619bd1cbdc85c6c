"""The screen of a comparison: the figures and sentences of `labledger compare`."""

from __future__ import annotations

from dataclasses import asdict

from labledger.compare.compare_options import CompareOptions, ErrorCounting, Estimand
from labledger.compare.comparison_document import Comparison
from labledger.compare.comparison_text import ComparisonText, comparison_texts
from labledger.compare.ranking import ranking_text
from labledger.errors import LabLedgerError
from labledger.records import JsonObject
from labledger.view.ledgers import DocumentSource
from labledger.view.pages import error_member
from labledger.view.parameters import Parameters

PARAMETERS = ("side", "metric", "lower_is_better", "errors", "estimand", "all_pairs")
_MAX_TASKS = 1000
"""How many tasks of a comparison the document lists."""
_MAX_CHOICES = 200


def document(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return a comparison of the sides, or only the choices if no side is given."""
    sides = tuple(side for side in parameters.texts("side") if side)
    options = _options(parameters)
    page = {
        "sides": list(sides),
        "metric": options.metric,
        "lower_is_better": options.lower_is_better,
        "errors": options.errors.value,
        "estimand": options.estimand.value,
        "all_pairs": options.all_pairs,
        "runs": [
            {
                "run_id": run.run_id,
                "name": run.name,
                "variants": [variant.variant_id for variant in run.variants],
            }
            for run in source.ledger.runs()[:_MAX_CHOICES]
        ],
        "error": None,
        "texts": [],
        "ranking": None,
        "comparison": None,
    }
    if not sides:
        return page
    try:
        # The user requested this comparison, so compute it from the current slots.
        compared = source.kept.get(
            ("compare", sides, options),
            _version(source),
            lambda: _compare(source, sides, options),
            is_final=True,
        )
    except LabLedgerError as error:
        return page | error_member(error)
    return page | compared.value


def _options(parameters: Parameters) -> CompareOptions:
    lower = parameters.choice("lower_is_better", ("", "yes", "no"))
    return CompareOptions(
        metric=parameters.text("metric") or "pass_rate",
        lower_is_better={"yes": True, "no": False}.get(lower),
        errors=ErrorCounting.named(parameters.text("errors") or ErrorCounting.AS_FAILURES),
        estimand=Estimand.named(parameters.text("estimand") or Estimand.TASKS),
        all_pairs=parameters.choice("all_pairs", ("no", "yes")) == "yes",
    )


def _version(source: DocumentSource) -> object:
    """Return a value that changes whenever the compared slots change."""
    return tuple(sorted((row.run_id, row.committed, row.total) for row in source.reader.progress()))


def _compare(source: DocumentSource, sides: tuple[str, ...], options: CompareOptions) -> JsonObject:
    comparison = source.ledger.compare(*sides, options=options)
    ranking = ranking_text(comparison)
    return {
        "texts": [_text(text) for text in comparison_texts(comparison)],
        "ranking": None if ranking is None else asdict(ranking),
        "comparison": _without_most_tasks(comparison),
    }


def _text(text: ComparisonText) -> JsonObject:
    return asdict(text) | {"facts": [fact._asdict() for fact in text.facts]}


def _without_most_tasks(comparison: Comparison) -> JsonObject:
    document = comparison.as_json()
    for compared in document["comparisons"]:
        compared["total_tasks"] = len(compared["by_task"])
        compared["by_task"] = compared["by_task"][:_MAX_TASKS]
    return document
