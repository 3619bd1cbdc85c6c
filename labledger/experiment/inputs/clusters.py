"""Read the cluster of a task: the value of a field of its row that groups related tasks.

Tasks of one repository, or of one passage, resemble each other, and a comparison must not treat
them as independent. The experiment names the field (`dataset.cluster`), the resolved experiment
stores the name, and comparisons of stored runs read the field from the frozen rows.
"""

from __future__ import annotations

from typing import Any

from labledger.experiment.consistency_checks import lookup
from labledger.experiment.inputs.field_problems import FieldPath
from labledger.records import canonical_json


def field_path(field: str) -> FieldPath:
    """Return the steps of a JSON pointer (``/task/repo``) or a dotted field (``task.repo``)."""
    if not field.startswith("/"):
        return tuple(field.split("."))
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in field.split("/")[1:])


def cluster_of(row: Any, field: str) -> str | None:
    """Return the cluster of a task's frozen row as text.

    None if the row has no such field, or if its value is neither text nor a number.
    """
    value = lookup(row, field_path(field))
    if isinstance(value, str):
        return value or None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return canonical_json.dumps(value) if is_number else None
