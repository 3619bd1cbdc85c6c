"""Hostile and broken output: whatever a container leaves, its trial has its documented outcome.

The tables are in `hostile_files` and `hostile_acts`. Every case runs in a container of its own. Of
every one of them holds besides: it ends within its deadline, and no file of the host is read,
changed or followed into.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hostile_acts import ACTS, CLOSED, NOISE, Act
from hostile_files import (
    CONTENTS,
    EVENTS,
    HOST_SECRET,
    MISFITS,
    PREDICTED,
    RESULT,
    SCORED,
    SIZES,
    THINGS,
    TOGETHER,
    Output,
    content_for,
    left,
    written,
)
from trial_kit import (
    BUSYBOX,
    GRADES,
    PYTHON,
    Trials,
    brief,
    phase,
    predicts,
    problems,
    scores,
)

from labledger.records import GradeReason, TrialResult
from labledger.trial.contract import TrialSpec
from labledger.trial.redact import MAX_MESSAGE
from labledger.trial.worker import discard_trial, run_trial

pytestmark = [pytest.mark.docker]


@dataclass
class Host:
    """Runs hostile trials beside a secret of the host."""

    trials: Trials
    secret: Path

    def run(self, agent: str = "true", grader: str = GRADES, **settings: Any) -> TrialResult:
        limit = settings.pop("timeout_s", 30)
        return self.collected(
            self.trials.spec(
                phase(agent.replace(HOST_SECRET, str(self.secret)), limit),
                phase(grader.replace(HOST_SECRET, str(self.secret)), limit),
                **settings,
            )
        )

    def leaves(self, made_by: dict[Output, str], **settings: Any) -> TrialResult:
        """The result of a trial that leaves files so: rows by its grader, others by its agent."""
        agent = "".join(left(by, output) for output, by in made_by.items() if not output.is_row)
        rows = "".join(left(by, output) for output, by in made_by.items() if output.is_row)
        good = "" if PREDICTED in made_by else predicts()
        good += "" if SCORED in made_by else scores()
        return self.run(agent or "true", rows + good, **settings)

    def collected(self, spec: TrialSpec) -> TrialResult:
        """The result of a trial, which must not touch the host; its folder is gone afterwards."""
        before = self._kept()
        with deadline(spec.deadline_s):
            result = run_trial(spec)
        everything = self.trials.everything(result)
        assert self.secret.read_bytes() not in everything
        assert Path("/etc/passwd").read_bytes() not in everything
        assert len(result.message or "") <= MAX_MESSAGE + 3
        discard_trial(spec)
        assert not spec.folder.exists()
        assert self._kept() == before
        return result

    def _kept(self) -> tuple[bytes, int, int]:
        return self.secret.read_bytes(), *(
            path.stat().st_mtime_ns for path in (self.secret, self.secret.parent)
        )


@pytest.fixture
def host(trials: Trials, tmp_path: Path) -> Host:
    secret = tmp_path / "host" / "secret"
    secret.parent.mkdir()
    secret.write_text(json.dumps({"verdict": "pass", "token": secrets.token_hex(16)}))
    return Host(trials, secret)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Fail what has not ended by then, also where it waits for something that never comes."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"not collected within the outer deadline of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


together = pytest.mark.parametrize(
    "outputs", TOGETHER, ids=lambda outputs: " ".join(output.name for output in outputs)
)


def check_refused(
    result: TrialResult, outputs: tuple[Output, ...], reason: GradeReason, word: str
) -> None:
    """A row that is refused is a grade_error; an agent's file is a problem of the evidence."""
    bad_row = next((output for output in outputs if output.is_row), None)
    if bad_row is None:
        assert brief(result) == ("completed", None, 0)
        assert (result.verdict, len(result.predictions)) == ("pass", 1)
    else:
        assert brief(result) == ("grade_error", reason, 0)
        assert (result.verdict, result.scores) == (None, ())
        assert len(result.predictions) == (bad_row is SCORED)
    if RESULT in outputs:
        assert result.outcome is None
    told = problems(result) | ({bad_row.name: result.message} if bad_row else {})
    assert told.keys() == {output.name for output in outputs}
    for output in outputs:
        message = told[output.name] or ""
        assert message.startswith(output.file)
        assert word in message


def check_kept(host: Host, result: TrialResult, output: Output, content: bytes) -> None:
    """What was refused is evidence, as it was."""
    kept = host.trials.rejected if output.is_row else host.trials.content
    assert kept(result, output.name) == content


@together
@pytest.mark.parametrize("what", THINGS)
def test_no_plain_file(host: Host, outputs: tuple[Output, ...], what: str) -> None:
    """What is no regular file with one name is refused by what it is, and nothing of it is kept."""
    thing = THINGS[what]
    result = host.leaves(dict.fromkeys(outputs, thing.made_by), image=thing.image)
    check_refused(result, outputs, GradeReason.OUTPUT_UNSAFE, thing.word)
    record = result.evidence[0]
    kept = record["evidence"].keys() | record.get("ext", {}).get("rejected", {}).keys()
    assert not {output.name for output in outputs} & kept
    assert (result.events, result.events_dropped) == ((), 0)


@together
def test_devices(host: Host, outputs: tuple[Output, ...], as_root: None) -> None:
    """No container can make a device; one that is there all the same is not opened."""
    result = host.leaves(dict.fromkeys(outputs, '! mknod "$F" c 1 5'))
    assert brief(result) == ("grade_error", f"{outputs[0].name}_missing", 0)
    spec = host.trials.spec("true", GRADES)
    run_trial(spec)
    for output in outputs:
        path = spec.folder / ("state" if output is EVENTS else "out") / output.file
        path.unlink(missing_ok=True)
        os.mknod(path, 0o20666, os.makedev(1, 5))
    result = host.collected(replace(spec, may_exist=True))
    check_refused(result, outputs, GradeReason.OUTPUT_UNSAFE, "a device")


@together
@pytest.mark.parametrize("what", CONTENTS)
def test_no_json(host: Host, outputs: tuple[Output, ...], what: str) -> None:
    """What is no JSON is refused with what was found in it, and kept as it was.

    Of the events only the broken line is, and counted: those before and after it are events.
    """
    broken = CONTENTS[what]
    contents = {output: content_for(broken, output) for output in outputs}
    result = host.leaves({output: written(content) for output, content in contents.items()})
    refused = tuple(output for output in outputs if output is not EVENTS)
    check_refused(result, refused, GradeReason.INVALID_JSON, broken.word)
    for output, content in contents.items():
        check_kept(host, result, output, content)
    if EVENTS in outputs:
        assert [(e.row_seq, e.body) for e in result.events] == [(0, EVENTS.good), (1, EVENTS.good)]
        assert result.events_dropped == broken.lines_dropped


@pytest.mark.parametrize(
    ("output", "what"),
    [
        pytest.param(output, what, id=f"{output.name} {what}")
        for what, size in SIZES.items()
        for output in size.outputs
    ],
)
def test_too_large(host: Host, output: Output, what: str) -> None:
    """A file beyond its cap is refused by its size; of events the lines within it are kept."""
    size = SIZES[what]
    result = host.leaves({output: size.made_by}, timeout_s=120)
    if output is not EVENTS:
        check_refused(result, (output,), size.reason, size.word)
        return
    assert brief(result) == ("completed", None, 0)
    assert (result.events, result.events_dropped) == ((), size.lines_dropped)
    assert f"more than {output.cap:,} bytes" in problems(result)["events"]
    assert len(host.trials.content(result, "events")) == output.cap


@pytest.mark.parametrize("what", MISFITS)
def test_no_row(host: Host, what: str) -> None:
    """JSON that its schema does not know, or that is about another trial, is refused and kept."""
    output, value, reason, word = MISFITS[what]
    content = json.dumps(value).encode()
    result = host.leaves({output: written(content)})
    check_refused(result, (output,), reason, word)
    check_kept(host, result, output, content)


@pytest.mark.parametrize(
    ("what", "image"),
    [
        pytest.param(what, image, id=f"{what}-{'busybox' if image == BUSYBOX else 'dash'}")
        for what, act in ACTS.items()
        for image in act.shells
    ],
)
def test_acts(host: Host, what: str, image: str) -> None:
    """What agents and graders do has its outcome, and the verdict is the grader's own."""
    act: Act = ACTS[what]
    runtime = {"resources": {"cpus": 1, "memory_bytes": 256 << 20, "pids": act.pids}}
    result = host.run(act.agent, act.grader, image=image, runtime=runtime, timeout_s=act.timeout_s)
    assert brief(result) == act.outcome
    assert result.verdict == act.verdict
    if result.status == "agent_timeout":
        assert result.phases["agent"].exit_status == 124
    if (result.reason or "").endswith("_missing"):
        assert f"the grader wrote no benchmark_{result.reason.removesuffix('_missing')}" in (
            result.message or ""
        )
    if act.grader_saw is not None:
        assert host.trials.content(result, "grader_stdout") == act.grader_saw
    if act.rejects:
        assert json.loads(host.trials.rejected(result, "score"))["verdict"] == "pass"


def test_a_gigabyte_of_noise(host: Host) -> None:
    """Of a gigabyte on stdout the first bytes are kept, and the agent neither waits nor dies."""
    result = host.run(NOISE)
    assert brief(result) == ("completed", None, 0)
    log = host.trials.content(result, "agent_stdout")
    assert log == b"first\n" + bytes((1 << 20) - len(b"first\n"))
    assert "first of them are kept" in problems(result)["agent_stdout"]
    assert host.trials.content(result, "agent_stderr") == b"said all\n"


def test_files_that_the_agent_closed(host: Host) -> None:
    """Modes that an agent takes away keep nothing from the evidence."""
    result = host.run(CLOSED, image=PYTHON)
    assert brief(result) == ("completed", None, 0)
    assert (result.verdict, result.outcome, len(result.events)) == ("pass", "success", 1)
    assert b"closed/file" in host.trials.content(result, "workspace_after")


def test_logs_that_became_links(host: Host) -> None:
    """A log that an agent replaces while it is written is refused, and the trial goes on."""
    agent = f"""cd /agentlab/state; echo said; until [ -s agent.stdout ]; do sleep 0.01; done
        rm agent.stdout; ln -s {HOST_SECRET} agent.stdout; echo more"""
    result = host.run(agent)
    assert brief(result) == ("completed", None, 0)
    assert "symbolic link" in problems(result)["agent_stdout"]


def test_names_of_all_kinds(host: Host) -> None:
    """Names with line breaks, of bytes that are no text, or as long as can be, are listed."""
    long = "n" * 255
    agent = f"""touch "$(printf 'line\\nbreak')" "$(printf 'bad\\377byte')" {long} -- -rf ' ' '*'
        mkdir "$(printf 'folder\\nbreak')" "$(printf 'bad\\377folder')"
        touch "$(printf 'folder\\nbreak')/in" "$(printf 'bad\\377folder')/in" """
    result = host.run(agent)
    assert brief(result) == ("completed", None, 0)
    listing = json.loads(host.trials.content(result, "workspace_after"))
    assert {entry["path"] for entry in listing["files"]} == {
        *("line\nbreak", "bad\ufffdbyte", long, "-rf", " ", "*", "folder\nbreak/in")
    }
    assert listing["left_out"] == ["bad\ufffdfolder"]
    patch = host.trials.content(result, "workspace_patch")
    assert b"line\nbreak" not in patch
    assert b"line\\nbreak" in patch


def test_a_workspace_of_too_many_files(host: Host) -> None:
    """Of more files than are listed none but the listed are looked at, and it is said so."""
    result = host.run("seq 20500 | xargs touch; mkdir -p deep/$(seq -s / 700)")
    assert brief(result) == ("completed", None, 0)
    listing = json.loads(host.trials.content(result, "workspace_after"))
    assert listing["truncated"]
    assert len(listing["files"]) == 20_000


def test_a_workspace_of_huge_files(host: Host) -> None:
    """Files too large for a digest are listed with their size; none of them is read or kept."""
    result = host.run("truncate -s 100G $(seq 100)")
    assert brief(result) == ("completed", None, 0)
    listing = json.loads(host.trials.content(result, "workspace_after"))
    assert [entry["size"] for entry in listing["files"]] == [100 << 30] * 100
    assert not any("sha256" in entry for entry in listing["files"])


@pytest.mark.parametrize("where", ["/agentlab/workspace", "/agentlab/out", "/agentlab/state"])
def test_an_agent_that_fills_its_disk(host: Host, where: str, as_root: None) -> None:
    """What an agent writes until nothing more can be written, and removes, is no trouble.

    What it leaves there is the disk's trouble: see `test_full_disk`.
    """
    spec = host.trials.spec(f"cat /dev/zero >{where}/fill && exit 1; rm {where}/fill; echo said")
    disk = spec.plan.run_dir / "trials"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "labledger", disk], check=True)
    try:
        result = host.collected(spec)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert brief(result) == ("completed", None, 0)
    assert result.verdict == "pass"
    assert host.trials.content(result, "agent_stdout") == b"said\n"
    assert b"No space left" in host.trials.content(result, "agent_stderr")
