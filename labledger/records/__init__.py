"""The types of records, results and outcomes, their JSON forms and schemas.

In: JSON that labledger, a container or a person wrote. Out: frozen dataclasses, and canonical JSON
of them. Import a type from its module; the package itself defines only `JsonObject`.
Knows nothing of the lab folder, SQL and Docker, and imports only `errors`, `resources` and `text`.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A JSON object."""
