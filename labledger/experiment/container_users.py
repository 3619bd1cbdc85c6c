"""The users that the containers and phases of a trial run as."""

from __future__ import annotations

USER_OF_IMAGE = "image"
"""The `runtime.user` of a container that starts as root and runs phases as the image's USER."""


def user_problem(agent: str | int | None, container: str | int | None) -> str | None:
    """Return why the agent cannot run as its user, or None. Only root can switch users."""
    if agent is None or container is None or is_root(agent) or starts_as_root(container):
        return None
    return (
        f"found {agent}, but runtime.user is {container}; only root can start the agent as "
        "another user"
    )


def is_root(user: str | int) -> bool:
    return str(user).partition(":")[0].strip("0") in {"", "root"}


def starts_as_root(container_user: str | int) -> bool:
    """Return whether a container with this `runtime.user` starts as root, with any image."""
    return container_user == USER_OF_IMAGE or is_root(container_user)


def user_of_phase(
    phase_user: str | None, container_user: str | None, image_user: str | None
) -> str | None:
    """Return the user to which a phase switches; None if it runs as the container's first user.

    `phase_user` is the user that the phase names, `container_user` is `runtime.user`, and
    `image_user` the USER of the image.
    """
    if container_user != USER_OF_IMAGE:
        return phase_user
    user = phase_user or image_user or "root"
    return None if is_root(user) else user
