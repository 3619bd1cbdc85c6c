"""Tables on terminals of any width never break a name, number or time."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from labledger.cli.table_layout import Content, draw, plain_text

RUN_IDS = [f"nightly-regression-20261120-09315{n}-4cc5" for n in range(3)]
NAMES = ["careful-with-a-long-name-of-its-model", "hasty"]
NUMBERS = ("trials", "scored", "pass", "fail", "miss", "err", "rate")


def drawn(content: Content, width: int) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, soft_wrap=True)
    return draw(content, console).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


def runs() -> Content:
    rows = [
        [name, "nightly", "interrupted", "12", "144", "2026-11-20T09:31:52.123Z"]
        for name in RUN_IDS
    ]
    columns = ("run_id", "experiment", "status", "saved", "trials", "created")
    return Content(columns, rows, frozenset({"saved", "trials"}))


def outcome() -> Content:
    rows = [[name, "1000", "1000", "600", "300", "50", "50", "60.0%"] for name in NAMES]
    return Content(("variant", *NUMBERS), rows, frozenset(NUMBERS))


def wide() -> Content:
    columns = tuple(f"column_{n}" for n in range(30))
    return Content(columns, [[f"value-{n}" for n in range(30)]], frozenset())


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("content", [runs(), outcome(), wide()], ids=["runs", "outcome", "wide"])
def test_no_value_is_broken(content: Content, width: int) -> None:
    """Each value is whole on one line, and no line is wider than the terminal."""
    lines = drawn(content, width)
    for row in content.rows:
        for value in row:
            assert any(value in line for line in lines), value
    longest = max(len(value) for row in content.rows for value in row)
    assert max(map(len, lines)) <= max(width, longest + 12)


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_run_id_is_not_broken(width: int) -> None:
    """The longest run id is not broken."""
    run_id = "swe-rename-keyword-arguments-of-functions-20261120-093150-4cc5"
    listed = runs()
    rows = [[run_id, *row[1:]] for row in listed.rows]
    assert any(run_id in line for line in drawn(Content(listed.columns, rows, listed.right), width))


def test_a_wide_table_is_one_line_a_row_where_there_is_room() -> None:
    """At 200 columns nothing is folded, and columns have three spaces between them."""
    lines = drawn(outcome(), 200)
    assert len(lines) == 4
    assert lines[0].startswith("variant" + " " * 33 + "trials   scored   pass")


def test_sentences_are_wrapped_beside_names() -> None:
    """A message uses the remaining width."""
    text = "the grader ended with status 3 before it had written a score, as it did before"
    content = Content(("run_id", "message"), [[RUN_IDS[0], text]], frozenset())
    lines = drawn(content, 80)
    assert len(lines) <= 2 + 3
    assert RUN_IDS[0] in lines[2]


def test_a_first_column_too_wide_stands_above_the_others() -> None:
    """The numbers of a row with a long name are below the name, in the usual columns."""
    lines = [line.rstrip() for line in drawn(outcome(), 60)]
    assert lines[0] == "variant"
    assert lines[3] == NAMES[0]
    assert lines[4].split() == ["1000", "1000", "600", "300", "50", "50", "60.0%"]


def test_columns_that_fit_nowhere_are_a_list_of_fields() -> None:
    """Thirty columns at width 80 become thirty lines, each with its name."""
    lines = drawn(wide(), 80)
    assert [line.split() for line in lines[1:3]] == [
        ["column_0", "value-0"],
        ["column_1", "value-1"],
    ]
    assert len(lines) == 31


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_plain_tables_are_drawn_as_rich_draws_them(rows: int) -> None:
    """Off a terminal, a table is the same with and without rich."""
    chance = random.Random(rows)
    words = ("", "a", "nightly run", "12", "é", "–", "漢字", "x" * 90, "-0.5", "─", "[bold]")
    for _ in range(100):
        names = [f"c{n}" + chance.choice(words) for n in range(chance.randint(1, 5))]
        cells = [[chance.choice(words) for _ in names] for _ in range(rows)]
        content = Content(names, cells, frozenset(chance.sample(names, k=len(names) // 2)))
        console = Console(file=io.StringIO(), highlight=False, soft_wrap=True)
        assert plain_text(content) == draw(content, console)
