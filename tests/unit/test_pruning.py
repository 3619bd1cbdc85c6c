"""When a variant is given up."""

from __future__ import annotations

import pytest

from labledger.execution.failure_limits import Pruning
from labledger.experiment.design_settings import Prune
from labledger.records.outcomes import SlotStatus


def noted(*statuses: SlotStatus, before: int = 0) -> Pruning:
    pruning = Pruning(Prune(2), {"treat": before})
    for status in statuses:
        pruning.count("treat", status)
    return pruning


FAILURES = [
    SlotStatus.AGENT_ERROR,
    SlotStatus.AGENT_TIMEOUT,
    SlotStatus.SETUP_ERROR,
    SlotStatus.GRADE_ERROR,
    SlotStatus.INFRA_ERROR,
]


@pytest.mark.parametrize("status", FAILURES)
def test_failures_in_a_row_prune(status: SlotStatus) -> None:
    """Every status but `completed` counts, and the limit itself is enough."""
    assert not noted(status).is_pruned("treat")
    assert noted(status, status).is_pruned("treat")


def test_a_completed_slot_ends_the_row() -> None:
    """Failures count only in a row, whatever the verdict of what lies between them."""
    pruning = noted(SlotStatus.AGENT_ERROR, SlotStatus.COMPLETED, SlotStatus.AGENT_ERROR)
    assert not pruning.is_pruned("treat")


def test_a_row_after_a_completed_slot_is_as_long() -> None:
    """The limit is the same after a slot that completed: the row begins again at nothing."""
    pruning = noted(SlotStatus.COMPLETED, SlotStatus.AGENT_ERROR, SlotStatus.AGENT_ERROR)
    assert pruning.is_pruned("treat")


def test_skipped_slots_neither_count_nor_end_the_row() -> None:
    """A pruned variant stays pruned while its slots are skipped."""
    pruning = noted(SlotStatus.AGENT_ERROR, SlotStatus.SKIPPED_PRUNED)
    assert not pruning.is_pruned("treat")
    pruning.count("treat", SlotStatus.INFRA_ERROR)
    assert pruning.is_pruned("treat")


def test_variants_are_counted_apart() -> None:
    """One variant's failures are no other's."""
    pruning = noted(SlotStatus.AGENT_ERROR, SlotStatus.AGENT_ERROR)
    assert not pruning.is_pruned("base")


def test_failures_before_a_resume_count() -> None:
    """Failures in a row are counted across a resume."""
    assert noted(SlotStatus.AGENT_ERROR, before=1).is_pruned("treat")


def test_nothing_is_pruned_unless_asked_for() -> None:
    """Without `design.prune`, a variant may fail for ever."""
    pruning = Pruning(None, {"treat": 1000})
    assert not pruning.is_pruned("treat")


def test_the_reason_names_variant_and_count() -> None:
    """A skipped slot says why."""
    pruning = noted(SlotStatus.AGENT_ERROR, SlotStatus.AGENT_ERROR)
    assert pruning.reason("treat") == "variant treat failed 2 slots in a row"
