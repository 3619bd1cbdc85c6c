"""Which changes to a container's file system look like tampering."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from labledger.trial.evidence.tampering import (
    MAX_PATHS,
    AgentPhase,
    changed_programs,
    is_autoloaded_file,
    suspicious_paths,
)


@pytest.mark.parametrize(
    ("changed", "suspected"),
    [
        (["/tmp", "/tmp/x", "/var", "/var/tmp", "/var/tmp/y", "/run", "/run/lock"], []),
        (["/root", "/root/.cache", "/home/agent/x", "/proc", "/dev", "/dev/null"], []),
        (["/etc", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/.dockerenv"], []),
        (["/agentlab", "/agentlab/in", "/agentlab/workspace", "/agentlab/sealed"], []),
        (["/agentlab/sealed/grader", "/agentlab/sealed/in", "/agentlab/sealed"], []),
        (["/agentlab", "/agentlab/tool"], ["/agentlab/tool"]),
        (["/agentlab/in/x"], ["/agentlab/in/x"]),
        (["/etc", "/etc/passwd", "/etc/hosts"], ["/etc/passwd"]),
        (["/etc"], ["/etc"]),
        (["/tmpx", "/rooted", "/running/x"], ["/rooted", "/running/x", "/tmpx"]),
        (["/usr/bin/python3", "/usr/bin", "/usr"], ["/usr/bin/python3"]),
        (["/usr", "/usr/bin", "/usr/bin/python3"], ["/usr/bin/python3"]),
        (["/usr/bin", "/usr/bin-x"], ["/usr/bin", "/usr/bin-x"]),
        (["/var", "/var/lib", "/var/lib/dpkg", "/var/log/x"], ["/var/lib/dpkg"]),
        (["/root/.local/lib/python3/site-packages/x.pth"],) * 2,
        (["/home/agent/venv/lib/dist-packages"],) * 2,
        (["/tmp/venv/lib/site-packages/x.py"], []),
        (["/conftest.py"], ["/conftest.py"]),
        (["/srv/a\nb"], ["/srv/a\nb"]),
    ],
)
def test_what_is_suspicious(changed: list[str], suspected: list[str]) -> None:
    """System paths are, ordinary ones and the engine's own are not; a folder only by itself."""
    assert suspicious_paths(changed) == (tuple(suspected), len(suspected))
    assert suspicious_paths(reversed(changed)) == (tuple(suspected), len(suspected))


def test_work_in_a_folder_of_the_image_is_ordinary() -> None:
    """Changes in the workspace are the trial's work, wherever it is; those beside it are not."""
    changed = ["/srv", "/srv/app", "/srv/app/x", "/srv/app/lib/site-packages/y", "/srv/apple"]
    assert suspicious_paths(changed, ["/srv/app"]) == (("/srv/apple",), 1)


def test_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much has changed, a hundred short paths are kept and all are counted."""
    monkeypatch.setattr("labledger.trial.evidence.tampering._MAX_COMPARED", 150)
    found, total = suspicious_paths(f"/opt/{'x' * 1000}{n}" for n in range(400))
    assert len(found) == MAX_PATHS
    assert max(map(len, found)) == 512
    assert total == 400


def test_hooks() -> None:
    """What tools load by themselves is known by its name, in any folder."""
    hooks = ["conftest.py", "a/b/conftest.py", "x.pth", "tox.ini", "a/sitecustomize.py"]
    others = ["conftest.pyc", "test_conftest.py", "pth", ".pth/x", "a/tox.ini.txt"]
    assert [is_autoloaded_file(name) for name in hooks + others] == [True] * 5 + [False] * 5


@pytest.mark.parametrize(
    ("phases", "begin", "end"),
    [
        ("agent 0 200 300 0\ngrader 0 310 400 0\n", 2.00, 3.11),
        ("setup 0 100 200 0\nagent 0 200 300 0\ngrader 0 300 400 0\n", 2.01, 3.01),
        ("agent 0 200 300 0\n", 2.00, float("inf")),
    ],
)
def test_an_agent_answers_for_the_moment_in_which_its_grader_begins(
    tmp_path: Path, phases: str, begin: float, end: float
) -> None:
    """Not for that in which a setup command ended. Times are noted in hundredths of a second."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/phases").write_text(phases)
    agent = AgentPhase.of(tmp_path)
    assert agent is not None
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert agent.begin - booted == pytest.approx(begin, abs=0.004)
    assert agent.end - booted == pytest.approx(end, abs=0.004)


def test_a_program_that_is_found_before_one_of_the_image_replaces_it(tmp_path: Path) -> None:
    """Only in a folder that is searched earlier; other programs that are added are no change."""
    image, upper = tmp_path / "image", tmp_path / "upper"
    for path in ("usr/bin/python3", "usr/local/bin/pip"):
        (image / path).parent.mkdir(parents=True, exist_ok=True)
        (image / path).touch()
    added = ["/usr/local/sbin/python3", "/usr/local/bin/new", "/usr/bin/pip", "/opt/bin/python3"]
    for path in added:
        (upper / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (upper / path[1:]).touch()
    agent = AgentPhase(begin=0.0, end=float("inf"), after_setup=False)
    assert changed_programs(added, str(upper), [str(image)], agent) == ["/usr/local/sbin/python3"]
    late = AgentPhase(begin=time.time() + 100, end=float("inf"), after_setup=False)
    assert changed_programs(added, str(upper), [str(image)], late) == []
