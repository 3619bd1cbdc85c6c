"""Time as labledger writes it: UTC, ISO 8601, milliseconds, `Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_FINER = re.compile(r"(\.\d{6})\d+")


def utc_now() -> str:
    return iso(datetime.now(UTC))


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(text: str) -> datetime:
    """A time as labledger or Docker writes it; what is finer than a microsecond is dropped."""
    return datetime.fromisoformat(_FINER.sub(r"\1", text))


def later(moment: str, seconds: float) -> str:
    """The time so many seconds after another one."""
    return iso(parse(moment) + timedelta(seconds=seconds))
