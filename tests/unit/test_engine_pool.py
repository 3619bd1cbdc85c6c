"""The pool of engine connections for threads."""

from __future__ import annotations

from labledger.engine.engine import EnginePool


def test_engine_is_used_by_one_thread_at_a_time() -> None:
    """Concurrent uses get different engines, and a free engine is used again."""
    pool = EnginePool()
    with pool.engine() as first, pool.engine() as second:
        assert first is not second
    with pool.engine() as third, pool.engine() as fourth:
        assert {third, fourth} == {first, second}


def test_engine_is_free_again_after_a_failure() -> None:
    """A trial that fails returns its engine to the pool."""
    pool = EnginePool()
    try:
        with pool.engine() as first:
            raise ValueError
    except ValueError:
        pass
    with pool.engine() as second:
        assert second is first
