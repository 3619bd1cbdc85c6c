"""Write a new experiment from a template, for `labledger init`.

Each profile is a small, commented experiment that runs without changes. Its files come from
`templates/common` and from its own folder. If writing fails, no file remains.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from labledger import resources
from labledger.errors import InvalidInput, Parameter, Problem
from labledger.files.durable_files import FileContent, write_content
from labledger.text.words import near_names

PROFILES = {
    "agent-eval": "two variants of an agent on small programming tasks, graded by tests",
    "ab-test": "two strategies on the same tasks, three replications, in pairs",
    "sweep": "one variant for each value of a parameter",
    "regression": "a candidate against the released agent: a fixed suite for CI",
}
"""Each profile with a description of its experiment in one line."""

DEFAULT_PROFILE = "agent-eval"
DEFAULT_IMAGE = "labledger/python:3"
"""The image that `scripts/image` builds."""

EXPERIMENT_FILE = "experiment.yaml"
_TASKS_FILE = "tasks.jsonl"
_SHARED_FOLDER = "common"
_MAX_ID_CHARACTERS = 64


def scaffold(profile: str, directory: Path, *, image: str | None = None) -> list[Path]:
    """Write the experiment of `profile` into `directory`, which is created or must be empty.

    Returns the files written, `experiment.yaml` first. Raises `InvalidInput` for an unknown
    profile, a directory that is not empty, or a file that cannot be written; files written before
    the failure are removed.
    """
    if profile not in PROFILES:
        raise InvalidInput("cannot create the experiment", [_unknown_profile(profile)])
    contents = _rendered(profile, experiment_id(directory, profile), image or DEFAULT_IMAGE)
    return write_experiment(directory, contents)


def write_experiment(directory: Path, contents: Mapping[str, FileContent]) -> list[Path]:
    """Write files by relative name into `directory`, and return their paths in the same order.

    Creates and raises what `scaffold` does.
    """
    _require_empty(directory)
    return _write_all(directory, contents)


def experiment_id(directory: Path, fallback: str) -> str:
    """Return a directory's name as an experiment id, or `fallback` if no character is usable."""
    name = unicodedata.normalize("NFKD", Path(os.path.realpath(directory)).name)
    ascii_name = name.encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", ascii_name).lstrip("_.-")
    return slug[:_MAX_ID_CHARACTERS].rstrip("_.-") or fallback


def _rendered(profile: str, name: str, image: str) -> dict[str, bytes]:
    """Return every file of a new experiment by its relative name, `experiment.yaml` first.

    These are the shared files and the profile's own. The profile's tasks follow the shared ones.
    """
    shared = _read_folder(resources.templates() / _SHARED_FOLDER)
    special = _read_folder(resources.templates() / profile)
    tasks = shared[_TASKS_FILE] + special.pop(_TASKS_FILE, b"")
    contents = dict(sorted({**shared, **special, _TASKS_FILE: tasks}.items()))
    text = contents.pop(EXPERIMENT_FILE).decode("utf-8")
    # JSON quotes the values, because a bare 2024 or `no` would not be text in YAML.
    for placeholder, value in (("@EXPERIMENT_ID@", name), ("@IMAGE@", image)):
        text = text.replace(placeholder, json.dumps(value))
    return {EXPERIMENT_FILE: text.encode("utf-8"), **contents}


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def _write_all(directory: Path, contents: Mapping[str, FileContent]) -> list[Path]:
    created: list[Path] = []
    try:
        for relative, content in contents.items():
            target = directory / relative
            for folder in [folder for folder in reversed(target.parents) if not folder.exists()]:
                folder.mkdir()
                created.append(folder)
            write_content(target, content)
            created.append(target)
    except BaseException as error:
        for path in reversed(created):
            is_folder = path.is_dir() and not path.is_symlink()
            path.rmdir() if is_folder else path.unlink()
        if isinstance(error, OSError):
            problem = Problem(str(error.filename or directory), error.strerror or str(error))
            raise InvalidInput("cannot create the experiment", [problem]) from error
        raise
    return [path for path in created if path.is_file() or path.is_symlink()]


def _require_empty(directory: Path) -> None:
    hint = "name a directory that is empty or does not exist"
    try:
        existing = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        problem = Problem(str(directory), error.strerror or str(error), hint=hint)
        raise InvalidInput("cannot create the experiment", [problem]) from error
    if existing:
        rest = f" and {len(existing) - 5} more" if len(existing) > 5 else ""
        names = ", ".join(existing[:5]) + rest
        problem = Problem(
            str(directory), f"contains {names}; expected an empty directory", hint=hint
        )
        raise InvalidInput("cannot create the experiment", [problem])


def _unknown_profile(profile: str) -> Problem:
    close = near_names(profile, PROFILES)
    expected = f"did you mean {close[0]!r}?" if close else f"known profiles: {', '.join(PROFILES)}"
    return Problem(Parameter("profile"), f"there is no profile {profile!r}; {expected}")
