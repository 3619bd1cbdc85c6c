"""The locked versions cover exactly the requirements in pyproject.toml."""

from __future__ import annotations

import os
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]


def requirements() -> list[Requirement]:
    """Return the requirements of the package, its extras and its build."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    parsed = map(Requirement, [*asked, *(text for extra in extras for text in extra)])
    return [one for one in parsed if one.name != "labledger"]


def locked() -> dict[str, str]:
    """Return the version of each distribution in requirements-locked.txt."""
    lines = (PROJECT / "requirements-locked.txt").read_text("utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_has_a_locked_version_in_its_range(requirement: Requirement) -> None:
    """Each requirement has a locked version within its range."""
    version = locked()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), "run scripts/lock"


def test_lock_names_versions_alone() -> None:
    """The file names no registry, file or range, so it serves every machine."""
    for line in (PROJECT / "requirements-locked.txt").read_text("utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line), line


def test_locked_versions_support_the_oldest_python() -> None:
    """Each locked version supports the oldest supported Python, 3.11.2 of Debian 12."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    refused = {
        name: asked
        for name, version in locked().items()
        if (asked := installed_requirement(name, version)) and not asked.contains(oldest)
    }
    assert not refused, "allow an older version of these, and run scripts/lock"


def installed_requirement(name: str, version: str) -> SpecifierSet | None:
    """Return the Python versions that a distribution requires; None if it is not installed.

    `scripts/test --newest` installs other versions on purpose.
    """
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    if distribution.version != version and os.environ.get("VENV_VERSIONS") == "newest":
        return None
    assert distribution.version == version, f"{name} is not the locked version: run scripts/venv"
    asked = distribution.metadata.get("Requires-Python")
    return SpecifierSet(asked) if asked else None


@pytest.mark.parametrize("name", ["test", "demo"])
def test_scripts_install_locked_versions(name: str) -> None:
    """scripts/venv makes the environment of every script, with the lock."""
    assert "scripts/venv" in (PROJECT / "scripts" / name).read_text("utf-8")
    constraint = "locked) choice=(--constraint requirements-locked.txt)"
    assert constraint in (PROJECT / "scripts/venv").read_text("utf-8")
