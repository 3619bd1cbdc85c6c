"""How long a provider asks clients to wait, from the headers of its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from labledger import clock

_NUMBER = re.compile(r"\s*[0-9]{1,15}(\.[0-9]{0,15})?\s*", re.ASCII)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the provider asks to wait; None if it does not say.

    `headers` has names in lower case. A date counts from the provider's own clock, if the answer
    has it.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        if _NUMBER.fullmatch(headers.get(name, "")):
            return float(headers[name]) / unit
    until = _date(headers.get("retry-after"))
    if until is None:
        return None
    now = _date(headers.get("date")) or clock.now()
    return max(0.0, (until - now).total_seconds())


def _date(text: str | None) -> datetime | None:
    """Return the time in a header; None if it has none."""
    try:
        date = parsedate_to_datetime(text or "")
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date
    except (ValueError, TypeError, OverflowError):
        return None
