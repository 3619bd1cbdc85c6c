"""Validate one row of a dataset and turn it into the frozen row that a run stores.

The digest of a task is taken over its frozen row, so the form of frozen rows must not change.
`dataset` is the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labledger.experiment.inputs.field_problems import relative_name
from labledger.experiment.inputs.workspace_tars import WorkspaceSource, WorkspaceTar
from labledger.records import JsonObject

_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,199}")
_IMAGE = re.compile(r"[^\s$]+")


def is_plainly_valid(row: Any) -> bool:
    """Whether a row is of the common form that is valid without running the schema.

    Twenty times as fast as the schema, and never true for a row that the schema rejects.
    """
    if type(row) is not dict or not row.keys() <= {"id", "task", "image", "workspace"}:
        return False
    task_id, image = row.get("id"), row.get("image", "any")
    if type(task_id) is not str or not _TASK_ID.fullmatch(task_id):
        return False
    if type(image) is not str or not _IMAGE.fullmatch(image):
        return False
    workspace = row.get("workspace", {"files": {}})
    if type(workspace) is not dict or workspace.keys() != {"files"}:
        return False
    files = workspace["files"]
    return type(files) is dict and all(type(text) is str for text in files.values())


def frozen_row(
    row: JsonObject, folder: Path, packed: Mapping[WorkspaceSource, WorkspaceTar]
) -> JsonObject:
    """Return the row as it is frozen: `id`, `task`, and if given `image`, `timeout_s`, `workspace`.

    A workspace is ``{"files": {name: text}}`` or ``{"tar": <sha256>, "size": <bytes>}``. Raises
    `KeyError` for a workspace that is not among `packed`.
    """
    frozen: JsonObject = {"id": row["id"], "task": row.get("task")}
    if "image" in row:
        frozen["image"] = row["image"]
    if "timeout_s" in row:
        frozen["timeout_s"] = plain_number(row["timeout_s"])
    workspace = row.get("workspace")
    if workspace is not None:
        source = workspace_source(workspace, folder)
        if source is None:
            frozen["workspace"] = {"files": workspace["files"]}
        else:
            frozen["workspace"] = {"tar": packed[source].sha256, "size": packed[source].size}
    return frozen


def plain_number(value: float) -> float:
    """Return a whole number as an int, so that 60 and 60.0 have the same frozen form."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def workspace_source(workspace: JsonObject, folder: Path) -> WorkspaceSource | None:
    """Return the folder or tar of a workspace, or None if its files are inline."""
    for key in ("directory", "tar"):
        if key in workspace:
            return WorkspaceSource(folder / relative_name(workspace[key]), key == "tar")
    return None
