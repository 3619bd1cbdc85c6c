"""A new experiment from a template: small, commented, and it runs as it is."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

from labledger import resources
from labledger.errors import InvalidInput, Problem
from labledger.near_names import near_names

PROFILES = {
    "agent-eval": "two variants of an agent on small programming tasks, graded by tests",
    "ab-test": "two strategies on the same tasks, three replications, in pairs",
    "sweep": "one variant for each value of a parameter",
    "regression": "a candidate against the released agent: a fixed suite for CI",
}
"""Each profile and what its experiment is, in a line."""

DEFAULT_PROFILE = "agent-eval"
DEFAULT_IMAGE = "labledger/python:3"
"""The image that `scripts/image` makes."""

EXPERIMENT_FILE = "experiment.yaml"
_TASKS_FILE = "tasks.jsonl"
_SHARED = "common"
_MAX_ID = 64


def scaffold(profile: str, directory: Path, *, image: str | None = None) -> list[Path]:
    """Write the experiment of `profile` into `directory`, which is made or must be empty.

    Returns the files written, `experiment.yaml` first. Raises `InvalidInput` for an unknown
    profile or a directory that holds something. Where a file cannot be written, those before it
    are removed again.
    """
    if profile not in PROFILES:
        raise InvalidInput("cannot make the experiment", [_unknown_profile(profile)])
    _check_empty(directory)
    contents = _rendered(profile, experiment_id(directory, profile), image or DEFAULT_IMAGE)
    return _write_all(directory, contents)


def experiment_id(directory: Path, fallback: str) -> str:
    """The experiment id that a directory's name gives, or `fallback` where nothing is left."""
    name = unicodedata.normalize("NFKD", directory.resolve().name)
    ascii_name = name.encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", ascii_name).lstrip("_.-")
    return slug[:_MAX_ID].rstrip("_.-") or fallback


def _rendered(profile: str, name: str, image: str) -> dict[str, bytes]:
    """Every file of a new experiment by its relative name, `experiment.yaml` first.

    They are the shared files and the profile's own. The profile's tasks follow the shared ones.
    """
    shared = _read_folder(resources.templates() / _SHARED)
    own = _read_folder(resources.templates() / profile)
    tasks = shared[_TASKS_FILE] + own.pop(_TASKS_FILE, b"")
    contents = dict(sorted({**shared, **own, _TASKS_FILE: tasks}.items()))
    text = contents.pop(EXPERIMENT_FILE).decode("utf-8")
    # Quoted, because a bare 2024 or `no` would not be text in YAML.
    for placeholder, value in (("@EXPERIMENT_ID@", name), ("@IMAGE@", image)):
        text = text.replace(placeholder, json.dumps(value))
    return {EXPERIMENT_FILE: text.encode("utf-8"), **contents}


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def _write_all(directory: Path, contents: dict[str, bytes]) -> list[Path]:
    made: list[Path] = []
    try:
        for relative, content in contents.items():
            target = directory / relative
            for folder in [folder for folder in reversed(target.parents) if not folder.exists()]:
                folder.mkdir()
                made.append(folder)
            with target.open("xb") as file:
                made.append(target)
                file.write(content)
    except BaseException as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            problem = Problem(str(error.filename or directory), error.strerror or str(error))
            raise InvalidInput("cannot make the experiment", [problem]) from error
        raise
    return [path for path in made if path.is_file()]


def _check_empty(directory: Path) -> None:
    hint = "name a directory that is empty or not there yet"
    try:
        found = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        problem = Problem(str(directory), error.strerror or str(error), hint=hint)
        raise InvalidInput("cannot make the experiment", [problem]) from error
    if found:
        names = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        problem = Problem(str(directory), f"holds {names}; expected an empty directory", hint=hint)
        raise InvalidInput("cannot make the experiment", [problem])


def _unknown_profile(profile: str) -> Problem:
    close = near_names(profile, PROFILES)
    expected = f"did you mean {close[0]!r}?" if close else f"known profiles: {', '.join(PROFILES)}"
    return Problem("--profile", f"there is no profile {profile!r}; {expected}")
