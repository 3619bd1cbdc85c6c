"""The public library: its names, their help, and the command line's use of it."""

from __future__ import annotations

import ast
import doctest
import inspect
import pickle
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import labledger
from labledger import errors, results
from labledger.runner.run_options import GROUPS

PROJECT = Path(__file__).parents[2]

FUNCTIONS = [name for name in labledger.__all__ if inspect.isfunction(getattr(labledger, name))]
FUNCTIONS += [
    f"results.{name}" for name in results.__all__ if inspect.isfunction(getattr(results, name))
]
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


def test_the_front_door_is_small() -> None:
    """At most 65 names are at the top: functions, and the options that they take."""
    assert len(labledger.__all__) <= 65
    assert set(dir(labledger)) == {*labledger.__all__, "errors", "results"}
    assert not set(labledger.__all__) & {*errors.__all__, *results.__all__}


def test_every_error_is_public() -> None:
    """A caller can catch each error by a name of `labledger.errors`."""
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LabLedgerError)
    }
    assert raised <= set(errors.__all__)


# -- names of version 0.3

HOMES = {name: module.__name__ for module in (errors, results) for name in module.__all__}


def test_moved_names_work_and_warn() -> None:
    """An old path gives the same object as the new one, and the warning names the new path."""
    assert not HOMES.keys() & set(dir(labledger))
    for name, home in HOMES.items():
        with pytest.warns(DeprecationWarning, match=f"use {home}.{name}$") as warned:
            value = getattr(labledger, name)
        assert value is public(f"{home}.{name}".removeprefix("labledger."))
        assert [warning.filename for warning in warned] == [__file__]


def test_a_moved_name_can_be_imported() -> None:
    """`from labledger import NAME` warns the importing module, and an unknown name is an error."""
    with pytest.warns(DeprecationWarning, match="labledger.errors.InvalidInput") as warned:
        exec("from labledger import InvalidInput as same\nassert same", {})
    assert {warning.filename for warning in warned} == {"<string>"}
    with pytest.raises(AttributeError, match="No labledger attribute nothing"):
        labledger.nothing  # noqa: B018


def test_the_project_uses_no_old_path() -> None:
    """Code, pages, examples and scripts name each public name by its present path."""
    moved = "|".join(HOMES)
    used = re.compile(rf"\blabledger\.({moved})\b|from labledger import [^\n]*\b({moved})\b")
    pages = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    sources = [path for top in SOURCES for path in (PROJECT / top).rglob("*.py")]
    # The documentation has a copy of the changelog once it was built.
    history = {PROJECT / "CHANGELOG.md", PROJECT / "docs/contributing/changelog.md"}
    for path in {*pages, *sources} - {*history, Path(__file__)}:
        assert not used.search(path.read_text("utf-8")), path


SOURCES = ("labledger", "tests", "docs", "examples", "scripts")


def test_public_values_survive_pickling() -> None:
    """Options, results and errors can be sent to another process."""
    options = labledger.RunLimits(budget_usd=20)
    problem = errors.Problem(errors.Parameter("tasks"), "found none")
    result = results.TaskSupport("two-sum", "no image")
    for value in (options, labledger.TrialSelection(limit=2), problem, result):
        assert pickle.loads(pickle.dumps(value)) == value
    assert pickle.loads(pickle.dumps(labledger.run)) is labledger.run


# -- options


def test_options_of_version_0_3_work_and_warn() -> None:
    """A field of a group can still be given directly, alone, with its group, and to `replace`."""
    with pytest.warns(DeprecationWarning, match="deprecated") as warned:
        options = labledger.RunOptions(limit=2, budget_usd=20, lease_ttl_s=5)
    advice = [str(warning.message).partition("; ")[2] for warning in warned]
    assert advice == [
        "use RunOptions(selection=TrialSelection(limit=…))",
        "use RunOptions(limits=RunLimits(budget_usd=…))",
        "use RunOptions(placement=Placement(lease_ttl_s=…))",
    ]
    assert {warning.filename for warning in warned} == {__file__}
    assert options.selection == labledger.TrialSelection(limit=2)
    assert options.limits == labledger.RunLimits(budget_usd=20)
    assert options.placement.lease_ttl_s == 5
    with pytest.warns(DeprecationWarning, match="tasks"):
        changed = replace(options, tasks=("a*",))
    assert changed.selection == labledger.TrialSelection(limit=2, tasks=("a*",))
    with pytest.raises(TypeError, match="limt"):
        labledger.RunOptions(limt=2)


def test_the_fields_of_options_have_one_name_each() -> None:
    """No two groups share a name, so that a message can name a field alone."""
    names = [
        item.name for kind in (labledger.RunOptions, *GROUPS.values()) for item in fields(kind)
    ]
    assert len(names) == len(set(names))


def test_a_choice_may_be_text() -> None:
    """Options take the text of a choice, and refuse other text when they are made or checked."""
    assert labledger.RunOptions(keep="failed").folder_retention is results.FolderRetention.FAILED
    with pytest.raises(errors.InvalidInput, match="keep: found 'some'; expected one of none"):
        labledger.RunOptions(keep="some")


# -- help

PAGES = {"python": labledger, "python-results": results, "python-errors": errors}


def sections(page: str) -> list[str]:
    text = (PROJECT / f"docs/reference/{page}.md").read_text("utf-8")
    return re.split(r"^## ", text, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("page", PAGES)
def test_the_reference_lists_every_public_name(page: str) -> None:
    """The page of a public module documents its names, no more and no less."""
    text = "\n".join(sections(page))
    documented = re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", text, re.MULTILINE)
    assert sorted(documented) == sorted(PAGES[page].__all__)


@pytest.mark.parametrize("page", ["python-results", "python-errors"])
def test_every_result_and_error_is_in_an_example(page: str) -> None:
    """Each section shows in an example the names that it documents."""
    for section in sections(page):
        example = "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))
        for name in re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", section, re.MULTILINE):
            assert re.search(rf"\b{name}\b", example), name


@pytest.mark.parametrize("name", labledger.__all__)
def test_examples_in_help_fit_the_library(name: str) -> None:
    """Help has an example. The names in it are public, and the arguments of each call are known."""
    text = inspect.getdoc(public(name)) or ""
    examples = doctest.DocTestParser().get_examples(text.partition("\nExample:\n")[2])
    assert examples
    for node in (n for example in examples for n in ast.walk(ast.parse(example.source))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("labledger."):
            called = public(ast.unparse(node.func).removeprefix("labledger."))
            keywords = {str(keyword.arg): None for keyword in node.keywords}
            inspect.signature(called).bind(*node.args, **keywords)


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
    assert "\nRaises:\n" in text or name.removeprefix("results.") in raises_nothing
    assert "->" in str(inspect.signature(function))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_a_ledger_has_help(name: str) -> None:
    """Each method has an imperative docstring, and the class lists the common errors."""
    text = inspect.getdoc(public(name)) or ""
    assert re.match(r"(Return|Write|Close|Compare) ", text), text
    assert "RunNotFound" in (inspect.getdoc(labledger.Ledger) or "")


@pytest.mark.parametrize(
    "name",
    [
        *("RunOptions", "CompareOptions", "PlanOptions", "ReportOptions"),
        *(kind.__name__ for kind in GROUPS.values()),
    ],
)
def test_the_help_of_options_explains_every_option(name: str) -> None:
    """Each field is described in `help`, with seconds named as such."""
    text = inspect.getdoc(public(name)) or ""
    for field in (item.name for item in fields(public(name))):
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
    allowed |= {"labledger.errors", "labledger.results", "labledger.text"}
    assert present - allowed <= set(contract["forbidden_modules"])
