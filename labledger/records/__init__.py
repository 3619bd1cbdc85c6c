"""The records of trials and runs: each module holds one of them, its type and its JSON form.

In: JSON that labledger or a container wrote. Out: frozen dataclasses, and canonical JSON of them.
Import a record from its module; the package itself only has the type that all of them share.
Knows nothing of files, SQL and Docker, and imports only `errors`, `resources` and `text`.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A JSON object."""
