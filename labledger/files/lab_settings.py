"""The settings of a lab: `settings.yaml` in its folder, which a person writes.

A lab without the file has no settings. An unknown field, or a version that this labledger does not
know, is an error: a setting that was misspelled must not be ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from labledger.errors import InvalidInput, Problem
from labledger.files.lab_folder import LabFolder
from labledger.records import JsonObject, json_schemas

SCHEMA = "lab_settings_v1"


@dataclass(frozen=True, slots=True)
class LabSettings:
    """What is set for every run of a lab."""

    notify: tuple[JsonObject, ...] = ()
    """Who is told what happens to a run: entries with a `webhook` or a `command`."""


def read_settings(lab: LabFolder) -> LabSettings:
    """Return the settings of a lab. Raises `InvalidInput` with every problem of the file."""
    path = lab.settings
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return LabSettings()
    except OSError as error:
        message = error.strerror or str(error)
        raise InvalidInput(f"cannot read {path}", [Problem(str(path), message)]) from error
    import yaml  # Late: few labs have the file.

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        problem = Problem(str(path), f"is not YAML: {error}")
        raise InvalidInput(f"cannot read {path}", [problem]) from error
    json_schemas.refuse_problems(path, json_schemas.problems(document, SCHEMA))
    return LabSettings(notify=tuple(document.get("notify", ())))
