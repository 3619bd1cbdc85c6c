"""What the engine's errors become, whichever engine words them."""

from __future__ import annotations

import pytest
from docker.errors import APIError, NotFound

from labledger.docker.engine_errors import (
    ContainerFailed,
    ContainerNameTaken,
    NoSuchContainer,
    translating_errors,
)

DOCKER_TAKEN = 'Conflict. The container name "/x" is already in use by container "519b". You have'
PODMAN_TAKEN = 'creating container storage: the container name "x" is already in use by 519b. You'


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotFound("404", explanation="No such container: x"), NoSuchContainer),
        (NotFound("404", explanation='no container "x" found: no such container'), NoSuchContainer),
        (NotFound("404", explanation="No such image: x"), ContainerFailed),
        (APIError("409", explanation=DOCKER_TAKEN), ContainerNameTaken),
        (APIError("500", explanation=PODMAN_TAKEN), ContainerNameTaken),
    ],
)
def test_docker_and_podman_are_understood(error: APIError, expected: type[Exception]) -> None:
    """A missing container and a taken name are recognized in the words of either engine."""
    with pytest.raises(ContainerFailed) as raised, translating_errors("do it"):
        raise error
    assert type(raised.value) is expected
