"""Put shared pieces of SQL into statements, so that a rule or a join is written once.

The pieces are in `fragments.sql`. What counts as passed comes from `records.pass_rate`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from labledger.records.pass_rate import PASSED_SQL

_FRAGMENT = re.compile(r"^-- (\w+)((?: [A-Z]+)*): .*\n((?:(?!--).+\n)+)", re.MULTILINE)
_USE = re.compile(r"\{(\w+)((?: [\w.()*]+)*)\}")


def _read_fragments() -> dict[str, tuple[list[str], str]]:
    """Return the parameters and the text of each fragment by its name."""
    file = Path(__file__).with_name("fragments.sql").read_text("utf-8")
    return {
        name: (parameters.split(), text.removesuffix("\n"))
        for name, parameters, text in _FRAGMENT.findall(file)
    }


_FRAGMENTS = {
    **_read_fragments(),
    "passed": (["status", "verdict", "agent_exit_status"], PASSED_SQL),
}


def expand(sql: str, arguments: Mapping[str, str] | None = None) -> str:
    """Return SQL with the text of each `{fragment}`. Raises `KeyError` for an unknown one.

    `arguments` are the values of parameters: `{NAME}` stands for one of them.
    """
    values = arguments or {}

    def text_of(use: re.Match[str]) -> str:
        if use[1] in values:
            return values[use[1]]
        parameters, text = _FRAGMENTS[use[1]]
        given = [values.get(word, word) for word in use[2].split()]
        return expand(text, dict(zip(parameters, given, strict=True)))

    return _USE.sub(text_of, sql)
