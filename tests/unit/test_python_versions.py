"""The classifiers of pyproject.toml name the supported Pythons; scripts and tools follow them."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
SUPPORTED = [
    match[1]
    for line in PYPROJECT["project"]["classifiers"]
    if (match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
]
OLDEST, NEWEST = SUPPORTED[0], SUPPORTED[-1]


def in_shell(code: str, path: Path) -> str:
    """Return the output of shell code after scripts/lib.sh, with this folder first on PATH."""
    code = f". scripts/lib.sh; {code}"
    env = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", code], cwd=PROJECT, env=env, capture_output=True, text=True
    )
    return done.stdout


def make_python(folder: Path, name: str, version: str) -> None:
    """Make a command that answers like a Python of this version, or like pyenv without one."""
    (folder / name).write_text(f"#!/bin/sh\n{f'echo {version}' if version else 'exit 127'}\n")
    (folder / name).chmod(0o755)


def find_python() -> str:
    """Run the function of scripts/venv that chooses a Python, and its inputs."""
    script = (PROJECT / "scripts/venv").read_text("utf-8")
    function = script[script.index("find_python() {") : script.index("# A moved")]
    (supported,) = re.findall(r"^supported=.*$", script, re.MULTILINE)
    return f"{supported}; {function} find_python"


def test_tools_check_for_the_oldest_python() -> None:
    """The versions have no gap, and tools and pip use the oldest."""
    oldest, newest = (int(version.removeprefix("3.")) for version in (OLDEST, NEWEST))
    assert [f"3.{minor}" for minor in range(oldest, newest + 1)] == SUPPORTED
    assert PYPROJECT["project"]["requires-python"] == f">={OLDEST}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{OLDEST.replace('.', '')}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == OLDEST


def test_scripts_read_the_classifiers(tmp_path: Path) -> None:
    """No script has its own list of versions."""
    assert in_shell("supported_pythons", tmp_path).split() == SUPPORTED
    for name in ("venv", "test", "lib.sh"):
        assert not re.search(r"3\.1\d", (PROJECT / "scripts" / name).read_text("utf-8")), name


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/tutorial.md"])
def test_pages_name_the_versions(page: str) -> None:
    """Introductory pages name the supported Pythons."""
    assert f"Python {OLDEST} to {NEWEST}" in (PROJECT / page).read_text("utf-8")


def test_the_newest_supported_python_is_taken(tmp_path: Path) -> None:
    """An untested newer Python and a name without a Python are skipped."""
    for version in SUPPORTED:
        make_python(tmp_path, f"python{version}", version)
    make_python(tmp_path, "python3.99", "3.99")
    make_python(tmp_path, "python3", "3.99")
    assert in_shell(find_python(), tmp_path).split() == [f"python{NEWEST}"]
    make_python(tmp_path, f"python{NEWEST}", "")
    assert in_shell(find_python(), tmp_path).split() == [f"python{SUPPORTED[-2]}"]
    make_python(tmp_path, "python3", NEWEST)
    assert in_shell(find_python(), tmp_path).split() == ["python3"]


def test_no_supported_python(tmp_path: Path) -> None:
    """Without a supported Python, none is chosen."""
    for name in ("python3", *(f"python{version}" for version in SUPPORTED)):
        make_python(tmp_path, name, "3.10" if name == "python3" else "")
    assert in_shell(find_python(), tmp_path) == ""
