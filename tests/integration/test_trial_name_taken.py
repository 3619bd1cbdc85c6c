"""An engine that was still creating a container when the coordinator that asked for it died."""

from __future__ import annotations

import pytest
from trial_kit import Trials, brief

from labledger.trial import inputs
from labledger.trial.container import thread_engine
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
