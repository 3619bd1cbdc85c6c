"""Internal networks from which the engine's machine can be reached are never used."""

from __future__ import annotations

import os

import pytest
from sample_trials import ENGINE

from labledger.engine.engine_errors import ContainerFailed
from labledger.engine.networks import Networks

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("image_ids")]


def test_an_engine_that_ignores_options_of_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Podman keeps no option of a bridge: its network is removed, and what it ignores is said."""
    name, labels = f"labledger-test-{os.getpid()}", {"org.labledger.test": str(os.getpid())}
    made = Networks(ENGINE).provide_internal(name, labels)
    Networks(ENGINE).remove(made.network_id)
    with ENGINE.api("create networks") as client:
        create = client.create_network
        monkeypatch.setattr(
            client, "create_network", lambda *a, **k: create(*a, **(k | {"options": {}}))
        )
    with pytest.raises(ContainerFailed, match="ignores the options that keep containers from"):
        Networks(ENGINE).provide_internal(name, labels)
    assert not Networks(ENGINE).with_labels(labels)
