"""Values from outside reach the agent and stay nowhere."""

from __future__ import annotations

import secrets
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

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


SPREADS = r"""
encoded=$(printf %s "user:$KEY" | base64)
url=$(printf %s "$KEY" | sed 's/+/%2B/g; s,/,%2F,g; s/=/%3D/g; s/&/%26/g')
hex=$(printf %s "$KEY" | od -An -v -tx1 | tr -d ' \n')
spread() {
  for form in "$KEY" "$encoded" "$url" "$hex"; do
    echo "$form"; echo "$form" >&2; printf 'x\0%s\n' "$form" >>"binary-$1"; echo "$form" >>"text-$1"
    printf '{"type": "%s", "%s": "%s"}\n' "$form" "$form" "$form" >>"$AGENTLAB_TRAJECTORY_PATH"
  done
  touch "$KEY" "$hex" 2>/dev/null || true
}
"""
"""Has a program write its key wherever it can, as it is and encoded."""
THROWING_AGENT = f"""{SPREADS}
spread agent
printf '{{"outcome": "error", "answer": "%s", "error": {{"error_type": "%s", "message": "%s",
  "stack": "%s"}}}}' "$KEY" "$hex" "$encoded" "$url" >"$AGENTLAB_RESULT_PATH"
exit 3
"""
THROWING_GRADER = f"""{SPREADS}
spread grader
printf '{{"prediction": {{"kind": "text", "value": "%s"}}, "ext": {{"%s": "%s"}}}}' \
  "$KEY" "$encoded" "$url" >"$AGENTLAB_BENCHMARK_PREDICTION_PATH"
printf '{{"verdict": "error", "primary_metric_name": "%s", "primary_metric_value": 0,
  "error": {{"error_type": "%s", "message": "%s", "stack": "%s"}}}}' \
  "$hex" "$KEY" "$url" "$encoded" >"$AGENTLAB_BENCHMARK_SCORE_PATH"
[ "$AGENTLAB_VARIANT_ID" = base ]
"""


def test_a_key_thrown_everywhere(tmp_path: Path, image_ids: dict[str, str]) -> None:
    """Setup, agent and grader spread their key, plain and encoded: it is kept nowhere, and told
    nowhere, and how often it was taken out is counted."""
    project = Project(tmp_path / "project", {"a": "true"})
    project.write("agent.sh", THROWING_AGENT)
    project.write("grader.sh", THROWING_GRADER)
    project.write("setup.sh", f"{SPREADS}\nspread setup\n")
    runtime = project.document["runtime"]
    runtime["setup"] = {"command": ["sh", "setup.sh"], "files": ["setup.sh"]}
    for phase in (runtime["setup"], runtime["agent"], project.document["benchmark"]["grader"]):
        phase["env"] = {"KEY": "$KEY"}
    project.save()
    key = f"sk+{secrets.token_hex(6)}/&={secrets.token_hex(6)}"

    with closing(project.run("thrown", "--env", f"KEY={key}")) as coordinator:
        assert coordinator.finish() == 0, coordinator.stderr
        told = [str(coordinator.events), coordinator.stderr]
    told += [
        project.output(*words)
        for words in (
            *(("show", "thrown", idx, "--full") for idx in (0, 1)),
            ("report", "thrown", "--markdown", "--logs", "all"),
            ("export", "thrown", "--what", "events", "--out", "-"),
        )
    ]
    assert [status for _, status in project.rows("thrown")["slots"]] == [
        "agent_error",
        "grade_error",
    ]
    kept = [path for path in project.lab.rglob("*") if path.is_file()]
    contents = [path.read_bytes() for path in kept] + [text.encode() for text in told]
    names = "\n".join(map(str, project.lab.rglob("*"))).encode()
    forms = {key, quote(key, safe=""), key.encode().hex()}
    forms.add(b64encode(f"user:{key}".encode()).decode()[8:-4])
    for form in forms:
        assert not any(form.encode() in content for content in (*contents, names)), form
    for row in project.rows("thrown")["evidence"]:
        assert row["ext"]["redacted"] > 50
