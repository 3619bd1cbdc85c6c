"""Packages describe themselves, and public class names are unique."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "labledger"
ROOMS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


def test_public_class_names_are_unique() -> None:
    """The name of a class means one thing in the whole package."""
    modules = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(str(path.relative_to(PROJECT)))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_room_says_where_to_begin(room: Path) -> None:
    """The docstring of a package names three of its modules to read first."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8")))
    assert text is not None
    last = text.split("\n\n")[-1]
    assert re.fullmatch(r"Read first: `\w+`, `\w+`, `\w+`\.", last), last
    assert [
        name for name in re.findall(r"\w+(?=`)", last) if not (room / f"{name}.py").exists()
    ] == []
