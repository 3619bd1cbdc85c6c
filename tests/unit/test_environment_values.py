"""The sources of `$NAME` values, and which source wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labledger.cli import arguments
from labledger.errors import InvalidInput
from labledger.runner import env_files


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "of the host")
    monkeypatch.delenv("ABSENT", raising=False)


def test_assignments_keep_everything_after_the_first_equals_sign() -> None:
    """A value may be empty, and may hold equals signs, spaces and quotes."""
    given = ["A=", "B=x=y", "C= a 'b' "]
    assert arguments.parse_environment(given) == {"A": "", "B": "x=y", "C": " a 'b' "}


def test_a_bare_name_takes_the_value_of_the_host() -> None:
    """`--env NAME` passes on the host's value."""
    assert arguments.parse_environment(["TOKEN"]) == {"TOKEN": "of the host"}


def test_assignments_say_all_problems_and_no_value() -> None:
    """Every wrong assignment is named, and no value is shown."""
    with pytest.raises(InvalidInput) as caught:
        arguments.parse_environment(["ABSENT", "1X=hidden", "=hidden", "OK=1", ""])
    assert len(caught.value.problems) == 4
    assert "'ABSENT'" in caught.value.message
    assert "'1X'" in caught.value.message
    assert "hidden" not in caught.value.message


def test_an_env_file_knows_comments_exports_and_quotes(tmp_path: Path) -> None:
    """Comments, `export` and quotes in an env file are read as people mean them."""
    path = tmp_path / "secrets.env"
    path.write_text('# a\n\nexport A = one \nB=\'two # 2\'\nC="\nD="three"\nexported=1\n', "utf-8")
    values = env_files.read_env_file(path)
    assert values == {"A": "one", "B": "two # 2", "C": '"', "D": "three", "exported": "1"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('"key-12345678" # of the team', "key-12345678"),
        ("'key-12345678'\t# of the team", "key-12345678"),
        ("key-abcdefgh # old", "key-abcdefgh"),
        ("a#b", "a#b"),
        ("#b", "#b"),
        ('"a # b"', "a # b"),
        ('"a" b', '"a" b'),
        ("", ""),
        ("# nothing", "# nothing"),
    ],
)
def test_comments_behind_values(tmp_path: Path, line: str, value: str) -> None:
    """A comment behind a value is cut; a # inside a value or quotes is kept."""
    path = tmp_path / "secrets.env"
    path.write_text(f"A={line}\n", "utf-8")
    assert env_files.read_env_file(path) == {"A": value}


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    """A Windows file with a byte order mark and CRLF is read like others."""
    path = tmp_path / "secrets.env"
    path.write_bytes(b"\xef\xbb\xbfA=1\r\nB=2\r\n")
    assert env_files.read_env_file(path) == {"A": "1", "B": "2"}


def test_an_env_file_names_its_bad_lines(tmp_path: Path) -> None:
    """A malformed line is named by its number, without its text."""
    path = tmp_path / "secrets.env"
    path.write_text("A=1\nhidden\nB C=hidden\n", "utf-8")
    with pytest.raises(InvalidInput) as caught:
        env_files.read_env_file(path)
    assert [problem.line for problem in caught.value.problems] == [2, 3]
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["absent", "binary"])
def test_an_env_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    """A missing or binary env file is invalid input, not a traceback."""
    path = tmp_path / "secrets.env"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"secrets\.env"):
        env_files.read_env_file(path)


def test_env_wins_over_files_and_files_over_the_host(tmp_path: Path) -> None:
    """--env wins over the later --env-file, the earlier one, and the host's environment."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("A=first\nB=first\nTOKEN=first\n", "utf-8")
    second.write_text("A=second\nB=second\n", "utf-8")
    values = env_files.gather({"A": "given"}, [first, second])
    assert (values["A"], values["B"], values["TOKEN"]) == ("given", "second", "first")
    assert env_files.gather({}, [])["TOKEN"] == "of the host"


def test_missing_names_are_sorted() -> None:
    """Names without a value are listed in a stable order; an empty value counts as a value."""
    assert env_files.missing(["C", "B", "A"], {"B": ""}) == ["A", "C"]


@pytest.mark.parametrize("given", [["A=1"], {"A": 1}, "A=1"])
def test_what_is_no_mapping_of_text_is_refused(given: Any) -> None:
    """A library caller who passes words or a number learns what is expected."""
    with pytest.raises(InvalidInput, match="a mapping of names to values"):
        env_files.gather(given, [])
