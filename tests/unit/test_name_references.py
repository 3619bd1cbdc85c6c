"""`$NAME` in authored text."""

from __future__ import annotations

import pytest

from labledger.experiment.authored_fields import (
    escape_names,
    expand_names,
    is_contract_name,
    referenced_names,
    substitute_names,
    text_parts,
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [("", False)]),
        ("plain", [("plain", False)]),
        ("$A", [("A", True)]),
        ("a${B}c", [("a", False), ("B", True), ("c", False)]),
        ("$A$B", [("A", True), ("B", True)]),
        ("$A_1-x", [("A_1", True), ("-x", False)]),
        ("$$A", [("$A", False)]),
        ("$$$A", [("$", False), ("A", True)]),
        ("cost: 5$", [("cost: 5$", False)]),
        ("$1 $( ${} ${1} ${A", [("$1 $( ${} ${1} ${A", False)]),
        ("a\n$B\n", [("a\n", False), ("B", True), ("\n", False)]),
    ],
)
def test_syntax(text: str, parts: list[tuple[str, bool]]) -> None:
    """`$NAME` and `${NAME}` are references, `$$` is a dollar sign, other dollars are literal."""
    assert [tuple(part) for part in text_parts(text)] == parts
    assert list(referenced_names(text)) == [name for name, is_name in parts if is_name]


@pytest.mark.parametrize("text", ["", "a$b", "$$", "${A}", "$", "x$$y$", "$AGENTLAB_X"])
def test_escaped_text_stands_for_itself(text: str) -> None:
    """Expanding an escaped text returns the text."""
    assert list(referenced_names(escape_names(text))) == []
    assert expand_names(escape_names(text), {}) == text


def test_substitution_is_authored_text_again() -> None:
    """Known values are inserted, unknown names stay, and the result is not read again."""
    text = substitute_names("$A-${B}-$$C-$D", {"A": "1 $B $$", "D": "$A"})
    assert list(referenced_names(text)) == ["B"]
    assert expand_names(text, {"B": "$A"}) == "1 $B $$-$A-$C-$A"


def test_unknown_names() -> None:
    """Expanding a text with an unknown name is an error."""
    with pytest.raises(KeyError, match="B"):
        expand_names("$A $B", {"A": ""})


def test_contract_names() -> None:
    """The container's own names are recognized by their form."""
    assert is_contract_name("AGENTLAB_RESULT_PATH")
    assert is_contract_name("WORKSPACE")
    assert not is_contract_name("WORKSPACES")
    assert not is_contract_name("MY_AGENTLAB_X")
