"""The language of pages, docstrings, comments and messages, and the names of variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def findings(*paths: object) -> list[str]:
    command = [sys.executable, "scripts/language.py", *map(str, paths)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == f"{len(done.stdout.splitlines())} findings\n"
    return done.stdout.splitlines()


def test_no_text_has_to_be_read_twice() -> None:
    """No page and no module of the package, the scripts or the tests breaks a rule."""
    pages = sorted(path.name for path in PROJECT.glob("*.md"))
    assert findings(*pages, "docs", "examples", "labledger", "scripts", "tests") == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("pronoun before of", "The limit of a run is that of its variant."),
        ("relative after of", "It has three parts, of which one is read."),
        ("passive of tell and say", "The coordinator is told of the end."),
        ("unnamed actor", "Somebody asked for it."),
        ("turn, more, want", "The host does not run it any more."),
        ("inverted sentence", "Of a run that ended, the newest row is kept."),
        ("sentence about what", "What was paused is started."),
        ("long sentence", "The run " + "goes on and " * 12 + "ends."),
        ("long table cell", "| a | " + "word " * 31 + "|"),
    ],
)
def test_a_page_that_breaks_a_rule_is_found(tmp_path: Path, rule: str, text: str) -> None:
    """A page with one bad sentence has one finding, with its line and rule."""
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nThis is fine.\n\n{text}\n", "utf-8")
    [finding] = findings(page)
    assert finding.startswith(f"{page}:5: {rule}: ")


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("docstring that repeats the name", 'def read_rows():\n    """Return the rows read."""\n'),
        ("name that does not say what it holds", "for each in ():\n    pass\n"),
        ("sentence about what", "x = 1\n# What is left here is removed later.\n"),
        ("unnamed actor", 'raise ValueError(f"{1} rows that nobody has asked for")\n'),
        ("long module docstring", '"""' + "One sentence is here.\n" * 20 + '"""\n'),
    ],
)
def test_a_module_that_breaks_a_rule_is_found(tmp_path: Path, rule: str, code: str) -> None:
    """A module with one bad text or name has one finding, with its rule."""
    module = tmp_path / "module.py"
    module.write_text(code, "utf-8")
    [finding] = findings(module)
    assert f": {rule}: " in finding


def test_code_and_quoted_output_are_no_sentences(tmp_path: Path) -> None:
    """Fenced blocks, code in a line and addresses of links are left alone."""
    page = tmp_path / "page.md"
    page.write_text(
        "Type `that of x` or see [the page](that-of.md).\n\n```\nnobody is told\n```\n", "utf-8"
    )
    assert findings(page) == []


@pytest.mark.parametrize(
    "code",
    [
        'def test() -> None:\n    assert output == "holds no run that nobody asked for"\n',
        'X = """\nuser: nobody\nimage: demo\n- nobody\n"""\n',
        'X = """\nsomebody max 0\nnobody max 1\n"""\n',
    ],
    ids=["output in an assertion", "YAML", "data"],
)
def test_expected_output_and_data_of_tests_are_no_sentences(tmp_path: Path, code: str) -> None:
    """Strings that assertions compare, and lines of data, are not findings."""
    module = tmp_path / "module.py"
    module.write_text(code, "utf-8")
    assert findings(module) == []
