"""The public library: its names, their help, and the command line's use of it."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import labledger
from labledger import errors

PROJECT = Path(__file__).parents[2]
REFERENCE = (PROJECT / "docs/reference/python.md").read_text("utf-8")

FUNCTIONS = [name for name in labledger.__all__ if inspect.isfunction(getattr(labledger, name))]
METHODS = [
    f"Ledger.{name}"
    for name, _ in inspect.getmembers(labledger.Ledger, inspect.isfunction)
    if not name.startswith("_")
]


def public(name: str) -> Any:
    value: Any = labledger
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_the_reference_lists_every_public_name() -> None:
    """docs/reference/python.md documents exactly `labledger.__all__`."""
    documented = re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", REFERENCE, re.MULTILINE)
    assert sorted(documented) == sorted(labledger.__all__)
    assert set(labledger.__all__) <= set(dir(labledger))


def test_every_error_is_public() -> None:
    """A caller can catch each error by a name in `labledger`."""
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LabLedgerError)
    }
    assert raised <= set(labledger.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_is_enough_to_use_a_function(name: str) -> None:
    """A function's help explains each parameter, lists its errors, and shows an example."""
    function = public(name)
    text = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^    {parameter}: ", text, re.MULTILINE), parameter
    assert "\nExample:\n" in text
    raises_nothing = {
        *("comparison_texts", "doctor", "expectation", "plan_text", "ranking_text"),
        *(
            "cancelled_sentences",
            "grading_name",
            "grading_sentences",
            "rerun_sentences",
            "skipped_sentences",
            "unread_sentences",
            "untested_sentences",
            "view_names",
        ),
    }
    assert "\nRaises:\n" in text or name in raises_nothing
    assert "->" in str(inspect.signature(function))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_ledger_has_help(name: str) -> None:
    """Each method has an imperative docstring, and the class lists the common errors."""
    text = inspect.getdoc(public(name)) or ""
    assert re.match(r"(Return|Write|Close|Compare) ", text), text
    assert "RunNotFound" in (inspect.getdoc(labledger.Ledger) or "")


@pytest.mark.parametrize("name", ["RunOptions", "CompareOptions", "PlanOptions", "ReportOptions"])
def test_the_help_of_options_explains_every_option(name: str) -> None:
    """Each field is described in `help`, with seconds named as such."""
    text = inspect.getdoc(public(name)) or ""
    for field in public(name).__dataclass_fields__:
        assert re.search(rf"^    {field}: ", text, re.MULTILINE), field
        if field.endswith("_s"):
            assert re.search(rf"^    {field}: Seconds", text, re.MULTILINE)


def test_options_do_not_show_secrets() -> None:
    """The text of options, which may end in a log, hides values for the experiment."""
    assert "hidden" not in repr(labledger.RunOptions(env={"TOKEN": "hidden"}))


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_the_library_leaves_the_process_alone() -> None:
    """The library never prints, asks, exits, or changes folder, umask or locale."""
    refused = {"print", "input", "exit", "sys.exit", "os._exit", "os.chdir", "os.umask"}
    refused |= {"locale.setlocale", "os.putenv", "contextlib.chdir", "chdir", "breakpoint"}
    for path in (PROJECT / "labledger").rglob("*.py"):
        # Programs are copied into containers, and never imported by the library.
        outside = path.name == "__main__.py" or path.stem.endswith("_program")
        outside |= bool({"cli", "templates"} & set(path.parts))
        if not outside:
            assert not refused & set(calls(path)), path


def test_the_contract_of_the_command_line_names_every_package() -> None:
    """The import contract forbids a new package to the command line until it is allowed."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    contract = next(
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("source_modules") == ["labledger.cli"]
    )
    present = {
        f"labledger.{path.stem}"
        for path in (PROJECT / "labledger").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    allowed = {"labledger.__init__", "labledger.__main__", "labledger.api", "labledger.cli"}
    allowed |= {"labledger.text"}
    assert present - allowed <= set(contract["forbidden_modules"])
