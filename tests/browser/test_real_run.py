"""The page beside a run in containers: what runs, what is committed, a coordinator that dies."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from experiments import HOLDING, HOLDS, RIGHT, Project
from page_viewer import Serve
from playwright.sync_api import expect

pytestmark = pytest.mark.docker
RUN = "watched"


def test_follows_a_run_in_containers(
    tmp_path: Path, image_ids: dict[str, str], serve: Serve
) -> None:
    """A page shows the trials of a run as they run, their commits, and a killed coordinator."""
    project = Project(tmp_path, {"t0": HOLDS, "t1": RIGHT, "t2": HOLDS})
    with closing(project.run(RUN, *HOLDING)) as coordinator:
        coordinator.until("slot_dispatched", times=2)
        project.await_agents(RUN, 2)
        viewer = serve(tmp_path)
        page = viewer.open(f"/runs/{RUN}")
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#now .phase", has_text="agent")).to_have_count(2)
        expect(page.locator("#grid .cell.running").first).to_be_visible()
        project.open_gate(RUN, 0)
        expect(page.locator("#progress")).to_contain_text("1 of 6 committed")
        project.open_gate(RUN, 1)
        expect(page.locator("#progress")).to_contain_text("4 of 6 committed")
        expect(page.locator("#grid .cell.pass")).to_have_count(4)
        page.locator("#grid .row", has_text="t0").locator("a").first.click()
        expect(page.get_by_role("heading", name="Files changed")).to_be_visible()
        page.go_back()
        expect(page.locator("#connection")).to_have_text("live")
        coordinator.kill()
        expect(page.locator("#run-state")).to_have_text("no coordinator")
        expect(page.locator("#notices")).to_contain_text(f"labledger resume {RUN}")
