"""What tests do to containers and images behind labledger's back, by the docker command."""

from __future__ import annotations

import hashlib
import signal
import subprocess

from waiting import wait_until


def docker(*words: str, stdin: bytes | None = None) -> str:
    """Run `docker WORDS`, which must succeed, and return what it printed."""
    done = subprocess.run(["docker", *words], input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def touch(container: str, path: str) -> None:
    """Make a file in a container, which may end because of it before the command does."""
    done = subprocess.run(["docker", "exec", container, "touch", path], capture_output=True)
    assert done.returncode in (0, 128 + signal.SIGKILL), done.stderr.decode()


def pause_container(name: str) -> None:
    """Pause a container. The kernel may refuse while its processes fork: try again for a while."""

    def is_paused() -> bool:
        command = subprocess.run(["docker", "pause", name], capture_output=True, text=True)
        assert not command.returncode or "unable to freeze" in command.stderr, command.stderr
        return not command.returncode

    wait_until(is_paused, f"{name} to be paused")


def build_image(tag: str, dockerfile: str) -> str:
    """Build an image from local ones, unless it is there, and return its id."""
    digest = hashlib.sha256(dockerfile.encode()).hexdigest()[:16]
    name = f"{tag}:{digest}"
    docker("build", "--quiet", "--network", "none", "--tag", name, "-", stdin=dockerfile.encode())
    return docker("image", "inspect", "--format", "{{.Id}}", name)
