"""Which image a verifier runs in, by the precedence of Harbor.

A separate verifier uses the `docker_image` of its own environment, else what `tests/Dockerfile`
builds: both hold the tests. Else it uses the agent's image, and gets the tests from the task.
"""

from __future__ import annotations

from dataclasses import dataclass

from labledger.benchmarks.harbor.task_config import TaskConfig, VerifierMode
from labledger.benchmarks.harbor.task_files import TaskFiles


@dataclass(frozen=True, slots=True)
class VerifierImage:
    """The image of a verifier."""

    docker_image: str | None
    """The name of a published image; None if the agent's image is used, or one is built."""
    built_from: str | None
    """The folder of the task that it is built from; None if it is not built."""
    has_tests: bool
    """Whether the image holds the tests itself."""


def verifier_image(config: TaskConfig, files: TaskFiles) -> VerifierImage:
    """Return the image of a task's verifier."""
    verifier = config.verifier
    if verifier.mode is VerifierMode.SHARED:
        return VerifierImage(None, None, has_tests=False)
    if verifier.environment is not None and verifier.environment.docker_image is not None:
        built_from = "tests" if files.has("tests/Dockerfile") else None
        return VerifierImage(verifier.environment.docker_image, built_from, has_tests=True)
    if files.has("tests/Dockerfile") or files.has("tests/docker-compose.yaml"):
        return VerifierImage(None, "tests", has_tests=True)
    return VerifierImage(None, None, has_tests=False)
