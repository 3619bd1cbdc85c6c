"""docs/reference/platforms.md matches the package and its scripts."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/reference/platforms.md").read_text("utf-8")

ON_MACOS = ("demo", "docs", "engine", "image", "lib.sh", "lock", "venv")
"""Scripts that macOS users run, and what they read."""

GNU_ONLY = {
    r"readlink +-f|realpath": "macOS before 12.3 has neither",
    r"sed +(-\w+ +)*-[a-zA-Z]*i|sed +(-\w+ +)*-r\b": (
        "BSD sed takes a suffix after -i, and -E for -r"
    ),
    r"date +(-\w+ +)*(-d|--date|-I)": "BSD date has -v and -j",
    r"stat +(-\w+ +)*(-c|--format)": "BSD stat has -f",
    r"sort +(-\w+ +)*-V": "not in older BSD sort",
    r"mktemp +.*(--|-p\b)": "BSD mktemp has no long options",
    r"grep +(-\w+ +)*-\w*P": "BSD grep has no Perl expressions",
    r"head +-n *-|base64 +-w|xargs +.*-d\b|find .*-printf": "not with BSD tools",
    r"\bnproc\b|sha256sum|\btac\b|\btimeout +\d": "not on macOS",
    r"mapfile|readarray|declare +-A|local +-n|wait +-n|\|&|&>>": "not in bash 3.2",
    r"\$\{\w+(,,|\^\^|@)|\$\{?EPOCH|printf +'%\(|exec +\{": "not in bash 3.2",
}


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Return the heading and the rows of each table in a text."""
    tables = re.findall(r"^(\|.*)\n\|[ |-]+\|\n((?:\|.*\n)*)", text, re.MULTILINE)
    return [(cells(heading), [cells(row) for row in rows.splitlines()]) for heading, rows in tables]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def supported() -> set[str]:
    """Return the Python versions that the package is declared for."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    return set(versions)


def test_each_row_has_a_command_and_a_date() -> None:
    """Each row of each table ends with the command that showed it and the date."""
    for heading, rows in tables(PAGE):
        assert heading[-1] == "date"
        for row in rows:
            assert len(row) == len(heading), row
            assert datetime.date.fromisoformat(row[-1]), row
            assert re.search(r"`[^`]+`", row[-2]), row


def test_supported_pythons_were_tried() -> None:
    """The classifiers name only Python versions that passed a test on the page."""
    passed = {
        ".".join(row[heading.index("Python")].split(".")[:2])
        for heading, rows in tables(PAGE)
        if "Python" in heading
        for row in rows
        if "FAILED" not in row[-2]
    }
    assert supported() <= passed


@pytest.mark.parametrize("name", ON_MACOS)
def test_scripts_for_macos_use_no_gnu_options(name: str) -> None:
    """Scripts that the page names for macOS need neither GNU tools nor a bash newer than 3.2."""
    assert name == "lib.sh" or f"`{name}`" in PAGE
    lines = (PROJECT / "scripts" / name).read_text("utf-8").splitlines()
    code = [line for line in lines if not line.lstrip().startswith("#")]
    rows = [
        f"{line.strip()}: {why}"
        for line in code
        for pattern, why in GNU_ONLY.items()
        if re.search(pattern, line)
    ]
    assert rows == []
