"""Runs whose agents ask models: from the command to the ledger, with kills in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from experiments import GRADER, Project
from gateways import KEY
from model_trials import ASKS, COST, SCRIPT, models
from sample_trials import PYTHON
from scripted_providers import ServedProvider, scripted_provider

from labledger import open_ledger
from labledger.gateway.client import GatewayClient

AGENT = """
program = open("do.py").read()
exec(program)
"""
RIGHT = "status, answer = ask('hello')\nopen('answer', 'w').write(answer + chr(10))\n"


@pytest.fixture(scope="module")
def provider() -> Iterator[ServedProvider]:
    with scripted_provider(SCRIPT) as served:
        yield served


class ModelProject(Project):
    """A project with one variant, whose tasks are programs that ask models."""

    def __init__(self, folder: Path, url: str, programs: dict[str, str]) -> None:
        self.programs = programs
        super().__init__(folder, {}, max_concurrency=2)
        self.environment["TEST_PROVIDER_KEY"] = KEY
        self.write("agent.py", ASKS + AGENT)
        del self.document["variant_plan"], self.document["metrics"]
        runtime = self.document["runtime"]
        runtime["image"] = PYTHON
        runtime["agent"] |= {"command": ["python3", "agent.py"], "files": ["agent.py"]}
        del runtime["agent"]["env"]
        runtime["models"] = models(url)
        self.write("grader.sh", GRADER)
        self.save()

    def tasks(self, scripts: dict[str, str]) -> None:
        rows = [
            {"id": name, "task": {"n": n}, "workspace": {"files": {"do.py": program}}}
            for n, (name, program) in enumerate(self.programs.items())
        ]
        self.write("tasks.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def metrics(self, run_id: str, idx: int) -> dict[str, float]:
        """The metrics of a slot that the gateway counted."""
        with open_ledger(lab_dir=self.lab) as ledger:
            rows = ledger.slot(run_id, idx)["metrics"]
        return {row["metric_id"]: row["value"] for row in rows if row["source"] == "gateway"}


@pytest.fixture
def project(tmp_path: Path, provider: ServedProvider) -> Iterator[ModelProject]:
    made = ModelProject(tmp_path / "project", provider.url, {"one": RIGHT, "two": RIGHT * 2})
    yield made
    GatewayClient(made.lab / "gateway").stop()


def test_a_run_counts_what_its_agents_use(project: ModelProject, provider: ServedProvider) -> None:
    """Verdicts, tokens and costs are those of the script, to the last digit, and no key is left."""
    before = len(provider.requests)
    done = project.command("run", project.experiment, "--run-id", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(provider.requests) == before + 3
    for idx, calls in enumerate((1, 2)):
        found = project.metrics("r", idx)
        assert found == {
            "tokens_in": calls * 120,
            "tokens_out": calls * 30,
            "cost_usd": pytest.approx(calls * COST, abs=1e-15),
        }
    project.check_whole("r")
    everything = b"".join(path.read_bytes() for path in project.lab.rglob("*") if path.is_file())
    assert KEY.encode() not in everything
    assert KEY not in done.stdout + done.stderr
