"""A trial whose stored evidence is judged again, by another grader, in a fresh container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from regrading_kit import NEW_GRADER, NOT_RUN, regraded_spec
from trial_kit import GRADER, GRADES, SCORE, Trials, brief, predicts, scores

from labledger.records import JsonObject, TrialResult
from labledger.trial.container import thread_engine
from labledger.trial.contract import Sealing
from labledger.trial.worker import discard_trial, run_trial

pytestmark = [pytest.mark.docker]

FAILS = predicts() + scores(SCORE | {"verdict": "fail", "primary_metric_value": 0.0})
PACKED = "tar -cf - . | sha256sum"

SEED: JsonObject = {
    "workspace": {
        "files": {
            "kept.txt": "kept\n",
            "text.txt": "one\ntwo\nthree",
            "deleted.txt": "d\n",
            "becomes_folder": "f\n",
            "folder/becomes_file.txt": "x\n",
            "large.txt": "l\n" * 200_000,
            "run.sh": "true\n",
            "becomes_link": "t\n",
        }
    }
}

CHANGES: dict[str, str] = {
    "nothing": "true",
    "text": "sed -i s/two/2/ text.txt; printf '\\nfour' >>text.txt",
    "new": "mkdir -p a/b; printf 'no newline' >a/b/c.txt; echo ä >'with space \"ü\".txt'",
    "deleted": "rm deleted.txt; rm -r folder",
    "empty": ": >empty.txt; : >text.txt; mkdir -p hollow/inner",
    "binary": "printf 'a\\0b' >bin; printf 'gr\\374n\\n' >latin.txt; printf '\\0' >text.txt",
    "large": "echo more >>large.txt; seq 100000 >big.txt",
    "executable": "chmod +x run.sh; printf '#!/bin/sh\\n' >tool; chmod 755 tool; cp tool t2",
    "links": "ln -s ../../etc/passwd out; ln -s kept.txt in; ln -s nowhere broken; "
    "rm becomes_link; ln -s / becomes_link",
    "file and folder": "rm becomes_folder; mkdir becomes_folder; echo y >becomes_folder/y; "
    "rm -r folder; echo z >folder",
    "caches": "mkdir -p a/__pycache__ .cache; echo c >a/__pycache__/x.pyc; echo d >.cache/d",
    "many": 'for i in $(seq 300); do echo $i >f$i; printf "\\0$i" >b$i; done',
    "too much for one patch": "for i in 1 2 3 4 5 6 7 8; do seq ${i}00000 ${i}30000 >s$i; done",
}


def judged_again(trials: Trials, first: TrialResult, **settings: Any) -> TrialResult:
    return run_trial(regraded_spec(trials, first, **settings))


def tree(folder: Path) -> dict[str, tuple[str, bytes, bool]]:
    """All that matters of a workspace but caches: files and links by name, and empty folders."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if "cache" in name:
            continue
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()).encode(), False)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), bool(path.stat().st_mode & 0o100))
        else:
            found[name] = ("folder", b"", False)
    return found


def incomplete(result: TrialResult, *words: str) -> None:
    """A slot that could not be judged again, and says why; no verdict was invented."""
    assert brief(result) == ("grade_error", "evidence_incomplete", None)
    assert result.scores == result.predictions == ()
    for word in words:
        assert word in str(result.message), result.message
    assert set(result.phases) <= {"setup", "agent"}


def test_another_grader_says_otherwise(trials: Trials) -> None:
    """Only the grader runs; all that came before is recalled, and the score names both."""
    agent = (
        "echo said; echo worse >&2; sleep 0.1; echo new >answer; "
        'echo \'{"type":"call"}\' >$AGENTLAB_TRAJECTORY_PATH; '
        'echo \'{"outcome":"success"}\' >$AGENTLAB_RESULT_PATH'
    )
    metric = {"id": "calls", "from": "events", "event": "call", "field": None, "aggregate": "count"}
    first = trials.run(agent, FAILS, setup="echo set up", metrics=(metric,))
    assert (first.verdict, first.scores[0]["ext"]["grader"]) == ("fail", GRADER)
    checks = (
        "set -e; grep new answer; grep success $AGENTLAB_RESULT_PATH; "
        'grep call $AGENTLAB_TRAJECTORY_PATH; test "$AGENTLAB_AGENT_EXIT_STATUS" = 0; '
        "test ! -e ../in/agent.sh; "
    )
    again = judged_again(trials, first, setup=NOT_RUN, grader=checks + GRADES, metrics=(metric,))
    assert brief(again) == ("completed", None, 0), trials.content(again, "grader_stderr")
    assert again.verdict == "pass"
    ext = again.scores[0]["ext"]
    assert ext["grader"] == NEW_GRADER
    regrades = {"run_id": first.ids.run_id, "trial_id": first.ids.trial_id}
    assert ext["regrades"] == again.evidence[0]["ext"]["regrades"] == regrades
    for phase in ("setup", "agent"):
        assert again.phases[phase] == first.phases[phase]
    assert again.phases["grader"] != first.phases["grader"]
    for same in ("outcome", "events", "metrics", "started_at"):
        assert getattr(again, same) == getattr(first, same)
    shared = {"agent_stdout", "agent_stderr", "setup_stdout", "setup_stderr", "events"}
    for name in shared | {
        "trial_output",
        *(f"workspace_{n}" for n in ("before", "after", "patch")),
    }:
        assert trials.content(again, name) == trials.content(first, name)
    assert again.duration_ms > first.phases["agent"].duration_ms + first.phases["setup"].duration_ms
    isolation = ext["isolation"]
    assert (isolation["sealed"], isolation["checked"]) == ("after_agent", "before_grading")
    assert isolation["agent_user"] == first.scores[0]["ext"]["isolation"]["agent_user"]


def test_what_a_grader_says_of_itself_does_not_count(trials: Trials) -> None:
    """A score's own `ext` keeps what is its own, and nothing under our names."""
    forged = {"grader": {"digest": "x"}, "regrades": {"run_id": "x"}, "own": 1, "isolation": {}}
    first = trials.run("true", predicts() + scores(SCORE | {"ext": forged}))
    ext = first.scores[0]["ext"]
    assert (ext["grader"], ext["own"]) == (GRADER, 1)
    assert "regrades" not in ext


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_restored(trials: Trials, change: str) -> None:
    """Whatever an agent made of its workspace, its new grader finds exactly that."""
    spec = trials.spec(f"{change}; rm -f /agentlab/out/*", GRADES, task=SEED)
    first = run_trial(spec)
    left = tree(spec.folder / "workspace")
    again_spec = regraded_spec(trials, first, task=SEED)
    again = run_trial(again_spec)
    assert brief(again) == ("completed", None, 0), again.message
    assert tree(again_spec.folder / "workspace") == left
    references = first.evidence[0]["evidence"]
    kept = {"binary", "large", "links", "many", "too much for one patch"}
    assert ("workspace_files" in references) == (change in {CHANGES[name] for name in kept})


def test_any_user_may_change_what_is_restored(trials: Trials) -> None:
    """A grader that is another user than the agent was finds all open, as a seed is."""
    first = trials.run("mkdir -p a/b; echo x >a/b/c; printf '\\0' >a/bin", runtime={"user": "0"})
    grader = f"set -e; echo y >>a/b/c; echo y >a/b/d; rm a/bin; {GRADES}"
    again = judged_again(trials, first, grader=grader, runtime={"user": "12345"})
    assert brief(again) == ("completed", None, 0), again.message


def test_sealed_trial_is_judged_again(trials: Trials) -> None:
    """How the first grader was kept from the agent does not matter to the second."""
    first = trials.run("echo x >new", sealing=Sealing.AFTER_AGENT)
    grader = f"grep x new && {{ {GRADES} }}"
    again = judged_again(trials, first, grader=grader)
    assert again.verdict == "pass"


@pytest.mark.parametrize(
    ("agent", "timeout_s", "status"),
    [("exit 3", 30, ("agent_error", 10, "3")), ("sleep 9", 0.3, ("agent_timeout", 11, "124"))],
)
def test_failed_agents_are_judged_again(
    trials: Trials, agent: str, timeout_s: float, status: tuple[str, int, str]
) -> None:
    """They are so by the policy; the grader hears how the agent ended, and so does the record."""
    first = trials.run(agent, FAILS, task={"timeout_s": timeout_s})
    assert first.verdict == "fail"
    grader = f'test "$AGENTLAB_AGENT_EXIT_STATUS" = {status[2]} && {{ {GRADES} }}'
    again = judged_again(trials, first, grader=grader, task={"timeout_s": timeout_s})
    assert (again.status.value, again.exit_status) == status[:2]
    assert (again.reason, again.message) == (first.reason, first.message)
    assert again.verdict == "pass"
    assert again.phases["agent"] == first.phases["agent"]


def test_grade_error_is_judged_again(trials: Trials) -> None:
    """A grader that failed is what regrading is for; a new one that fails is one again."""
    first = trials.run("echo x >new", "exit 5")
    assert first.reason == "grader_exit_nonzero"
    assert judged_again(trials, first, grader=GRADES).verdict == "pass"
    again = judged_again(trials, first, grader="echo why >&2; exit 6")
    assert brief(again) == ("grade_error", "grader_exit_nonzero", 40)
    assert trials.content(again, "grader_stderr") == b"why\n"


NO_GRADING = {"benchmark": {"policy": {"grade_failed_agents": False}}}


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"agent": "echo out; exit 3", **NO_GRADING}, "agent_error"),
        ({"setup": "echo out; exit 4"}, "setup_error"),
        ({"agent": "echo out; kill -9 $PPID; exit 50", "sealing": Sealing.NONE}, None),
    ],
)
def test_what_was_never_graded_is_carried_over(
    trials: Trials, settings: dict[str, Any], status: str | None
) -> None:
    """Without a container: the same status, reason, message, evidence; it says what it was."""
    first = trials.run(**{"agent": "true", **settings})
    if status is None:
        first = first.failed_with(first.status.INFRA_ERROR, "container_killed", "it was killed")
    spec = regraded_spec(trials, first, **{k: v for k, v in settings.items() if k != "agent"})
    again = run_trial(spec)
    assert thread_engine().inspect(spec.container) is None
    assert not spec.folder.exists()
    for same in ("status", "reason", "message", "exit_status", "phases", "duration_ms", "ended_at"):
        assert getattr(again, same) == getattr(first, same)
    assert again.evidence[0]["evidence"] == first.evidence[0]["evidence"]
    assert {a.sha256 for a in again.artifacts} == {a.sha256 for a in first.artifacts}
    assert again.ids == spec.ids
    assert again.scores == ()
    discard_trial(spec)


def test_forged_status_is_carried_over(trials: Trials) -> None:
    """An agent that forged its end is not judged, whatever the policy says of failures."""
    first = trials.run("true").failed_with(
        TrialResult.from_json(trials.run("exit 3").as_json()).status, "status_forged", "forged"
    )
    spec = regraded_spec(trials, first)
    again = run_trial(spec)
    assert (again.status.value, again.reason) == ("agent_error", "status_forged")
    assert thread_engine().inspect(spec.container) is None
