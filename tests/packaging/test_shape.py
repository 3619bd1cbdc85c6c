"""The shape of the package's code, as its syntax shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "labledger"
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if "templates" not in path.relative_to(PACKAGE).parts
)
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Names that Python documents for named tuples and rows."""
LIBRARIES = {
    *("aiohttp", "alembic", "cryptography", "dask", "distributed", "docker", "fsspec"),
    *("genai_prices", "jinja2", "jsonschema", "markupsafe", "msgpack", "numpy", "pandas"),
    *("pathspec", "polars", "pyarrow", "pysqlite3", "requests", "rich", "scipy", "sqlalchemy"),
    *("swebench", "urllib3", "yaml"),
}
"""Libraries that may be absent or take long to import, so that modules import them late."""
ON_DEMAND = ("api", "cli")
"""Packages whose functions import what they run, because each serves one of many commands."""
REASON = "# Imported late: "
MOST_IMPORTS = 30
"""A module with more imports of the package needs its collaborators in one object."""
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


def module_name(path: Path) -> str:
    """The dotted name of a module."""
    parts = ("labledger", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


@dataclass
class Imports:
    """The imports of a module: those that run with it, and those inside its functions."""

    early: list[ast.stmt] = field(default_factory=list)
    late: list[ast.stmt] = field(default_factory=list)


@cache
def imports_of(path: Path) -> Imports:
    """The imports of a module, without those for types alone."""
    imports = Imports()

    def visit(node: ast.AST, in_function: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                (imports.late if in_function else imports.early).append(child)
            elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
                is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                visit(child, in_function or is_function)

    visit(parsed(path), in_function=False)
    return imports


def imported(statement: ast.stmt) -> set[str]:
    """The modules that a statement imports."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    assert isinstance(statement, ast.ImportFrom)
    within = {f"{statement.module}.{alias.name}" for alias in statement.names}
    return (within & NAMES.keys()) or {statement.module or ""}


def loaded_with(name: str) -> set[str]:
    """The modules of the package that are loaded when a module has been imported."""
    loaded: set[str] = set()
    waiting = [name]
    while waiting:
        parts = waiting.pop().split(".")
        for length in range(1, len(parts) + 1):
            module = ".".join(parts[:length])
            if module in NAMES and module not in loaded:
                loaded.add(module)
                for statement in imports_of(NAMES[module]).early:
                    waiting += imported(statement)
    return loaded


def has_reason(path: Path, statement: ast.stmt) -> bool:
    """Whether the comment above a statement, or above the imports before it, has a reason."""
    lines = path.read_text("utf-8").splitlines()
    late = {
        number
        for other in imports_of(path).late
        for number in range(other.lineno, (other.end_lineno or other.lineno) + 1)
    }
    number = statement.lineno - 1
    while number in late or not lines[number - 1].strip():
        number -= 1
    while lines[number - 1].lstrip().startswith("#"):
        if lines[number - 1].lstrip().startswith(REASON):
            return True
        number -= 1
    return False


def test_imports_in_functions_have_a_reason() -> None:
    """A function imports a slow or optional library, what a command runs, or says why."""
    unexplained = [
        f"{path.relative_to(PACKAGE)}:{statement.lineno}: {ast.unparse(statement)}"
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0] not in ON_DEMAND
        for statement in imports_of(path).late
        if not {name.partition(".")[0] for name in imported(statement)} <= LIBRARIES
        and not has_reason(path, statement)
    ]
    assert unexplained == []


def test_imports_in_functions_load_something() -> None:
    """A function does not import what its module has loaded anyway."""
    idle = []
    for name, path in NAMES.items():
        late = imports_of(path).late
        loaded = loaded_with(name) - {"labledger"} if late else set()
        idle += [
            f"{path.relative_to(PACKAGE)}:{statement.lineno}: {ast.unparse(statement)}"
            for statement in late
            if imported(statement) <= loaded
        ]
    assert idle == []


def test_no_module_imports_much_of_the_package() -> None:
    """No module imports more modules of the package than `MOST_IMPORTS`."""
    counts = {
        name: len(set().union(*map(imported, imports_of(path).early)) & NAMES.keys())
        for name, path in NAMES.items()
    }
    assert {name: count for name, count in counts.items() if count > MOST_IMPORTS} == {}


def test_no_modules_import_each_other() -> None:
    """Imports form no circle, and neither do those for types."""
    edges = {
        name: {
            target
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Import | ast.ImportFrom) and node not in imports_of(path).late
            for target in imported(node)
        }
        for name, path in NAMES.items()
        if name != "labledger"
    }
    # Leave out what imports nothing, and what nothing imports, until only circles are left.
    while True:
        targets = {target for name in edges for target in edges[name]}
        kept = {name for name in edges if name in targets and edges[name] & edges.keys()}
        if kept == edges.keys():
            break
        edges = {name: edges[name] & kept for name in kept}
    assert edges == {}
