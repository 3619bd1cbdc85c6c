"""The types of records, results and outcomes, their JSON forms and schemas.

In: JSON that labledger, a container or a person wrote. Out: frozen dataclasses, and their canonical
JSON. Import a type from its module; the package defines only `JsonObject`. Knows nothing of the lab
folder, SQL and Docker. Imports only `errors`, `resources` and `text`.

Read first: `attempt_result`, `outcomes`, `canonical_json`.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A JSON object."""
