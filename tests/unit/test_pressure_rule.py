"""The rule that decides when a trial was short of processors."""

from __future__ import annotations

import pytest

from labledger.records.resource_pressure import short_of_processors

FULL = {"duration_s": 60, "processors": 2, "cpu_others_s": 90, "cpu_used_s": 20}
"""A trial on a machine whose processors were busy, with control groups of version 1."""


@pytest.mark.parametrize(
    ("pressure", "is_short"),
    [
        ({"duration_s": 60, "cpu_some_s": 20}, True),
        ({"duration_s": 60, "cpu_some_s": 19}, False),
        ({"duration_s": 60, "cpu_some_s": 5, "steal_s": 60, "processors": 4}, True),
        ({"duration_s": 60, "cpu_some_s": 5, "steal_s": 40, "processors": 4}, False),
        ({"duration_s": 60, "cpu_some_s": 58, "cpu_throttled_s": 57}, False),
        ({"duration_s": 60, "cpu_some_s": 58, "cpu_throttled_s": 90}, False),
        ({"duration_s": 60, "cpu_some_s": 50, "processors": 2, "cpu_others_s": 90}, True),
        ({**FULL, "machine_cpu_some_s": 60}, True),
        ({**FULL, "machine_cpu_some_s": 19}, False),
        ({**FULL, "machine_cpu_some_s": 60, "cpu_some_s": 5}, False),
        ({**FULL, "machine_cpu_some_s": 60, "cpu_waited_s": 5}, False),
        ({**FULL, "machine_cpu_some_s": 60, "cpu_waited_s": 40}, True),
        ({**FULL, "machine_cpu_some_s": 5, "cpu_waited_s": 40}, False),
        ({**FULL, "cpu_waited_s": 40}, True),
        ({**FULL, "machine_cpu_some_s": 60, "cpu_used_s": 1}, False),
        ({**FULL, "machine_cpu_some_s": 60, "cpu_throttled_s": 50}, False),
        ({"duration_s": 60, "machine_cpu_some_s": 60, "processors": 2}, False),
    ],
)
def test_waiting_for_a_third_of_the_time_is_a_shortage(
    pressure: dict[str, float], is_short: bool
) -> None:
    """Waiting and stolen time count together, and waiting at the trial's CPU limit does not."""
    assert short_of_processors(pressure) is is_short


def test_processes_that_wait_for_each_other_are_no_shortage() -> None:
    """A container with many processes on an idle machine is not short of processors."""
    pressure = {
        "duration_s": 60,
        "cpu_some_s": 59,
        "processors": 8,
        "cpu_others_s": 20,
        "steal_s": 3,
    }
    assert not short_of_processors(pressure)


@pytest.mark.parametrize("value", [None, "59", True, -59.0, float("nan"), float("inf"), [59]])
def test_what_is_no_number_is_unknown(value: object) -> None:
    """A missing or malformed measurement never makes a trial short of processors."""
    assert not short_of_processors({"duration_s": 60, "cpu_some_s": value})
    assert not short_of_processors({"duration_s": value, "cpu_some_s": 59})
    assert not short_of_processors({"cpu_some_s": 59})
