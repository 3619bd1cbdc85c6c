"""The shape of the package's code, as its syntax shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "labledger"
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if "templates" not in path.relative_to(PACKAGE).parts
)
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Names that Python documents for named tuples and rows."""
OF_PYTHON = {"_exit", "_run_exitfuncs", "_Hash"}
"""Names of the standard library: `os._exit`, the end of a process, and the type of a hash."""


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax of a module."""
    return ast.parse(path.read_text("utf-8"))


def place(path: Path, node: ast.expr) -> str:
    """Where a node is, and its source."""
    return f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)[:80]}"


def literal_splats(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls whose arguments are unpacked from a tuple, list or dict that is written there."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        for argument in call.args:
            if isinstance(argument, ast.Starred) and isinstance(
                argument.value, ast.Tuple | ast.List
            ):
                yield call
        for keyword in call.keywords:
            if (
                keyword.arg is None
                and isinstance(keyword.value, ast.Dict)
                and all(isinstance(key, ast.Constant) for key in keyword.value.keys)
            ):
                yield call


def private_accesses(
    node: ast.AST, class_names: frozenset[str] = frozenset()
) -> Iterator[ast.Attribute]:
    """Accesses to private attributes from outside the class that has them."""
    for child in ast.iter_child_nodes(node):
        names = class_names
        if isinstance(child, ast.ClassDef):
            names |= own_names(child)
        if isinstance(child, ast.Attribute) and is_private(child.attr):
            is_own = (
                ast.unparse(child.value) in {"self", "cls", "super()"} or child.attr in class_names
            )
            if not is_own and child.attr not in NAMED_TUPLES | OF_PYTHON:
                yield child
        yield from private_accesses(child, names)


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def own_names(definition: ast.ClassDef) -> frozenset[str]:
    """The names of the methods and attributes of a class."""
    names = set()
    for node in ast.walk(definition):
        match node:
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                names.add(name)
    return frozenset(names)


def test_no_call_unpacks_a_literal() -> None:
    """Arguments are written in the call, not in a literal that the call unpacks."""
    assert [place(path, call) for path in MODULES for call in literal_splats(parsed(path))] == []


def test_private_attributes_stay_in_their_class() -> None:
    """Only the code of a class uses its private attributes."""
    accesses = [place(path, node) for path in MODULES for node in private_accesses(parsed(path))]
    assert accesses == []


@pytest.mark.parametrize("source", ["f(*(a, b))", "f(*[a])", 'f(**{"a": 1})'])
def test_an_unpacked_literal_is_found(source: str) -> None:
    """The check finds each kind of literal."""
    assert len(list(literal_splats(ast.parse(source)))) == 1


def test_a_private_access_is_found() -> None:
    """The check allows a class its own attributes, and nothing else."""
    source = """
class Own:
    _a: int
    def same(self, other):
        return self._a < other._a and other._b
x = Own()._a
"""
    accesses = [ast.unparse(node) for node in private_accesses(ast.parse(source))]
    assert accesses == ["other._b", "Own()._a"]
