"""What unit tests share: no Docker engine, and an empty ledger with the ways into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sample_ledgers as kit
from chart_process import ChartProcess

from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.report import chart_drawing


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests need no Docker: for them, and for the commands that they run, there is none."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")


@pytest.fixture(scope="session")
def _chart_process() -> Iterator[ChartProcess]:
    process = ChartProcess()
    yield process
    process.stop()


@pytest.fixture
def one_chart_process(_chart_process: ChartProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the charts of every page that this process writes by one process for all tests."""
    monkeypatch.setattr(chart_drawing, "draw_svg", _chart_process.svg)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return kit.make_ledger(tmp_path)


@pytest.fixture
def writer(path: Path) -> Iterator[LedgerWriter]:
    with kit.open_writer(path) as opened:
        yield opened


@pytest.fixture
def reader(path: Path) -> Iterator[LedgerReader]:
    with LedgerReader.open(path) as opened:
        yield opened


@pytest.fixture
def clock() -> kit.FakeClock:
    return kit.FakeClock()


@pytest.fixture
def first(path: Path, clock: kit.FakeClock) -> Iterator[LedgerWriter]:
    """One of two writers that go by the same clock."""
    with kit.open_writer(path, clock) as opened:
        yield opened


@pytest.fixture
def second(path: Path, clock: kit.FakeClock) -> Iterator[LedgerWriter]:
    with kit.open_writer(path, clock) as opened:
        yield opened
