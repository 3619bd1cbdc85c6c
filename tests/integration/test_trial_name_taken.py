"""An engine that was still creating a container when the coordinator that asked for it died."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from trial_kit import Trials, brief

from labledger.trial import inputs
from labledger.trial.container import thread_engine
from labledger.trial.gate import Abandoned, StartGate, use_gate
from labledger.trial.isolation import container_config
from labledger.trial.worker import run_trial

pytestmark = pytest.mark.docker


def test_a_container_that_appears_late_is_no_error(trials: Trials) -> None:
    """A name that is taken by a container that never ran is given to the trial after all."""
    spec = trials.spec("echo once >>starts")
    inputs.prepare(spec)
    thread_engine().create(spec.container, container_config(spec))
    result = run_trial(spec)
    assert brief(result) == ("completed", None, 0)
    assert b"+once\n" in trials.content(result, "workspace_patch")
    assert trials.content(result, "workspace_patch").count(b"once") == 1


@pytest.fixture
def lost() -> Iterator[None]:
    """This thread's run belongs to somebody else."""
    gate = StartGate(1)
    gate.abandon()
    use_gate(gate)
    yield
    use_gate(StartGate(1))


def test_a_trial_of_a_lost_run_touches_nothing(trials: Trials, lost: None) -> None:
    """The container and the folder that another coordinator has just made stay as they are."""
    spec = trials.spec("echo once")
    inputs.prepare(spec)
    container = thread_engine().create(spec.container, container_config(spec))
    (spec.folder / "out" / "mark").touch()
    for known in (spec, replace(spec, may_exist=True)):
        with pytest.raises(Abandoned):
            run_trial(known)
        state = thread_engine().inspect(spec.container)
        assert state is not None
        assert state.container_id == container
        assert (spec.folder / "out" / "mark").exists()


def test_a_folder_appears_whole_or_not_at_all(trials: Trials) -> None:
    """Who lost the run while it prepared a trial leaves no folder, and none is written over."""

    def refuse() -> None:
        assert not spec.folder.exists()
        raise Abandoned

    spec = trials.spec("echo once")
    with pytest.raises(Abandoned):
        inputs.prepare(spec, refuse)
    assert not spec.folder.exists()
    inputs.prepare(spec)
    (spec.folder / "workspace" / "work").touch()
    with pytest.raises(OSError, match="not empty"):
        inputs.prepare(spec)
    assert (spec.folder / "workspace" / "work").exists()
    assert list((spec.plan.run_dir / inputs.INCOMING).iterdir()) == []
