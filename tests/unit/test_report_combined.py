"""Reports of all pairs of variants, and of several runs that are taken as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import comparison_ledgers as runs
import pytest

from labledger.api import ReportOptions, open_ledger
from labledger.errors import InvalidInput
from labledger.records import JsonObject, json_schemas


def facts(path: Path, run_id: str, **options: Any) -> JsonObject:
    with open_ledger(path) as ledger:
        document = ledger.report(run_id, ReportOptions(**options))
    json_schemas.require_valid(document, "report_v1")
    return document


def rendered(path: Path, run_id: str, form: str, **options: Any) -> str:
    with open_ledger(path) as ledger:
        return ledger.rendered_report(run_id, form, ReportOptions(**options)).decode()


def test_a_report_of_all_pairs_ranks_the_variants(path: Path) -> None:
    """The facts, the page and the Markdown have the ranking with its groups, and every pair."""
    runs.make_run(path, {"base": "F" * 12, "good": "P" * 12, "fair": "P" * 10 + "FF"})
    document = facts(path, "run-1", all_pairs=True)
    (comparison,) = document["comparisons"]
    groups = {side["variant_id"]: side["groups"] for side in comparison["ranking"]}
    assert groups == {"good": ["a"], "fair": ["a"], "base": ["b"]}
    headline = "good was shown to differ from all others but fair on tasks like these."
    assert document["headline"] == headline
    markdown = rendered(path, "run-1", "markdown", all_pairs=True)
    assert "| `good` | 100.0% |" in markdown
    assert "| `fair` against `good` | No difference shown |" in markdown
    page = rendered(path, "run-1", "html", all_pairs=True)
    assert "3 variants of run-1 on tasks like these, in 3 pairs" in page
    assert '<td class="strong">a</td>' in page
    assert "ranking" not in rendered(path, "run-1", "html").partition("<body>")[2]
    with pytest.raises(InvalidInput, match="--all-pairs"):
        facts(path, "run-1", all_pairs=True, compare=("base good",))
