"""The helper modules of these tests."""

from __future__ import annotations

import sys
from pathlib import Path

import host_cluster.projects

_TESTS = Path(__file__).parents[1]


def test_a_failed_assert_of_a_helper_says_what_it_found() -> None:
    """pytest rewrites the asserts of all test modules, also of helpers without tests.

    Otherwise such an assert fails without saying which values were left, differed or were missing.
    """
    helpers = {
        name: type(module.__loader__).__name__
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and Path(file).is_relative_to(_TESTS)
    }
    assert host_cluster.projects.__name__ in helpers
    assert set(helpers.values()) == {"AssertionRewritingHook"}, helpers
