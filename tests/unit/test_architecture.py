"""ARCHITECTURE.md and the pages beside it, against the packages, their imports and their files."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "labledger"
ARCHITECTURE = (PROJECT / "ARCHITECTURE.md").read_text("utf-8")
PAGES = ["ARCHITECTURE.md"] + [
    str(path.relative_to(PROJECT))
    for path in (
        *sorted((PROJECT / "docs/explanation").glob("*.md")),
        PROJECT / "docs/contributing/where-to-start.md",
    )
]
MOST_WORDS = 1_200

_NAMED_PATH = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|pyi|sql|sh|jsonschema))?)`")
"""A file of code with its folder, or a folder, such as `trial/life/`."""
_OF_A_RUN = {"trials/000003-1/", "out/", "state/", "traces/", "accepted/", "outbox/", "stores/"}
"""Folders that a run makes."""


def rows() -> dict[str, list[str]]:
    """The cells of each row of the table of packages, by the name of the package."""
    section = ARCHITECTURE.partition("## Packages")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines)
    return {first.strip("`"): rest for first, *rest in cells}


@pytest.fixture(scope="module")
def picture() -> Iterator[ModuleType]:
    """`scripts/package_picture.py`."""
    sys.path.insert(0, str(PROJECT / "scripts"))
    try:
        import package_picture

        yield package_picture
    finally:
        sys.path.remove(str(PROJECT / "scripts"))


@pytest.fixture(scope="module")
def imports(picture: ModuleType) -> dict[str, frozenset[str]]:
    """The packages that each package of labledger imports."""
    return dict(picture.imports_among_packages())


def test_the_picture_is_what_the_code_gives(
    picture: ModuleType, imports: dict[str, frozenset[str]]
) -> None:
    """Drawing the packages again gives the picture that is there."""
    drawn = "\n".join(picture.svg(picture.essential_arrows(imports))) + "\n"
    assert drawn == picture.TARGET.read_text("utf-8"), "run `python scripts/package_picture.py`"


def test_the_picture_leads_wherever_a_package_imports(
    picture: ModuleType, imports: dict[str, frozenset[str]]
) -> None:
    """The picture omits an arrow only if other arrows lead to the same package."""
    arrows = picture.essential_arrows(imports)
    for package in imports:
        assert reachable(arrows, package) == reachable(imports, package)
        assert arrows[package] <= imports[package]


def test_an_arrow_is_left_out_where_another_way_leads(picture: ModuleType) -> None:
    """If A imports C both directly and through B, the picture shows only the way through B."""
    imports = {"top": {"middle", "low"}, "middle": {"low"}, "low": set(), "alone": set()}
    arrows = {"top": {"middle"}, "middle": {"low"}, "low": set(), "alone": set()}
    assert picture.essential_arrows({k: frozenset(v) for k, v in imports.items()}) == arrows


def test_every_package_has_its_row(imports: dict[str, frozenset[str]]) -> None:
    """The table has a row for each package, and no other."""
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(rows()) == packages == set(imports)


def test_no_package_imports_what_its_row_forbids(imports: dict[str, frozenset[str]]) -> None:
    """No package imports a package that its row forbids."""
    for package, cells in rows().items():
        forbidden = set(re.findall(r"`(\w+)`", cells[-1])) & set(imports)
        assert not forbidden & reachable(imports, package), package


@pytest.mark.parametrize(
    ("word", "library"), [("Docker", "docker"), ("databases", "sqlite3")], ids=str
)
def test_forbidden_libraries_are_those_of_the_contracts(word: str, library: str) -> None:
    """The table names Docker and databases for the packages for which `lint-imports` checks it."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    checked = {
        module.removeprefix("labledger.")
        for contract in contracts
        if library in contract.get("forbidden_modules", ())
        for module in contract["source_modules"]
    }
    assert {package for package, cells in rows().items() if word in cells[-1]} == checked


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    """Each file or folder that a page names exists in the package or the project."""
    for path in set(_NAMED_PATH.findall((PROJECT / page).read_text("utf-8"))) - _OF_A_RUN:
        assert (PACKAGE / path).exists() or (PROJECT / path).exists(), path


def test_the_page_stays_short() -> None:
    """ARCHITECTURE.md stays one page long; details belong in `docs`."""
    assert len(ARCHITECTURE.split()) <= MOST_WORDS


def reachable(imports: dict[str, frozenset[str]], package: str) -> set[str]:
    """The packages to which imports lead from one, directly or not."""
    direct = imports[package]
    return set(direct).union(*(reachable(imports, other) for other in direct))
