"""The engines of an owner's threads."""

from __future__ import annotations

from labledger.engine.engine import EnginePool


def test_engine_is_used_by_one_thread_at_a_time() -> None:
    """Each use at the same moment gets an engine of its own; one that is free is used again."""
    pool = EnginePool()
    with pool.engine() as first, pool.engine() as second:
        assert first is not second
    with pool.engine() as third, pool.engine() as fourth:
        assert {third, fourth} == {first, second}


def test_engine_is_free_again_after_a_failure() -> None:
    """A trial that fails does not cost the pool its engine."""
    pool = EnginePool()
    try:
        with pool.engine() as first:
            raise ValueError
    except ValueError:
        pass
    with pool.engine() as second:
        assert second is first
