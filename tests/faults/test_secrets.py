"""Values from outside reach the agent and stay nowhere."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

import pytest
from experiments import PASSING, Project

from labledger.api import open_ledger

pytestmark = pytest.mark.docker

TELLS = """\
for value in "$A" "$B" "$C" "$D"; do
  echo "$value"; echo "$value" >&2; echo "$value" >>leaked; echo "{\\"type\\": \\"$value\\"}" \
    >>"$AGENTLAB_TRAJECTORY_PATH"
done
answer=${#A}-${#B}-${#C}-${#D}"""


def test_precedence_and_redaction(
    tmp_path: Path, image_ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bindings win over --env, that over --env-file, that over the host; no value is kept."""
    project = Project(tmp_path / "project", {"a": TELLS})
    project.document["runtime"]["agent"]["env"] |= {name: f"${name}" for name in "ABCD"}
    del project.document["variant_plan"]
    project.document["baseline"]["bindings"] |= {"A": "bound"}
    project.save()
    given, filed, hosts = (secrets.token_hex(n) for n in (8, 9, 10))
    env_file = tmp_path / "secrets.env"
    env_file.write_text(f"A=file-a\nB=file-b\nexport C='{filed}'\n", "utf-8")
    for name in "ABC":
        monkeypatch.setenv(name, f"host-{name}")
    monkeypatch.setenv("D", hosts)

    words = ("--env", "A=given-a", "--env", f"B={given}", "--env-file", env_file, *PASSING)
    with closing(project.run("secret", *words)) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr
    assert given not in str(coordinator.events)

    with open_ledger(lab_dir=project.lab) as ledger:
        slot = ledger.slot("secret", 0)
        stdout = ledger.artifact(slot["evidence"][0]["evidence"]["agent_stdout"])
    assert slot["predictions"][0]["prediction"]["value"] == "5-16-18-20"
    assert stdout == b"bound\n[redacted:B]\n[redacted:C]\n[redacted:D]\n"
    files = [path for path in project.lab.rglob("*") if path.is_file()]
    assert project.lab / "ledger.sqlite" in files
    for value in (given, filed, hosts):
        assert [path for path in files if value.encode() in path.read_bytes()] == []
