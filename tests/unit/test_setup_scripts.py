"""The scripts that set up a machine: their commands and versions."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PROJECT = Path(__file__).parents[2]

_README = """\
# labledger

```console
$ scripts/other
```

```sh
scripts/demo    # sets everything up
scripts/test    # runs `everything`

# only a comment
```

Text between.

```sh
labledger agents
```
"""

_STUB = """\
#!/usr/bin/env bash
echo "${0##*/} $* versions=${VENV_VERSIONS:-} folder=${VENV_FOLDER:-}"
"""


def _project(folder: Path, *scripts: str) -> Path:
    """Return a project with these scripts of this project."""
    (folder / "scripts").mkdir(parents=True)
    for name in (*scripts, "lib.sh"):
        shutil.copy(PROJECT / "scripts" / name, folder / "scripts" / name)
    shutil.copy(PROJECT / "pyproject.toml", folder)
    return folder


def _run(*words: str | Path, **variables: str) -> str:
    # `scripts/test --newest` runs these tests, too.
    known_variables = {"PYTHON", "VENV_FOLDER", "VENV_VERSIONS", "TEST_PROCESSES"}
    environment = {name: value for name, value in os.environ.items() if name not in known_variables}
    done = subprocess.run(
        ["bash", *words],
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fresh_machine_runs_the_first_block_of_the_readme(tmp_path: Path) -> None:
    """By default, a fresh machine runs exactly the README's first block of commands."""
    project = _project(tmp_path / "project", "fresh-machine")
    (project / "README.md").write_text(_README)
    listed = _run(project / "scripts/fresh-machine", "--list")
    assert listed.splitlines() == ["scripts/demo", "scripts/test"]


def test_the_readme_begins_with_two_commands() -> None:
    """The commands of a fresh machine are the two with which this README begins."""
    listed = _run(PROJECT / "scripts/fresh-machine", "--list")
    assert listed.splitlines() == ["scripts/demo", "scripts/test"]


def test_the_newest_releases_have_an_environment_of_their_own(tmp_path: Path) -> None:
    """`scripts/test --newest` ignores the locked versions and tests the newest releases."""
    project = _project(tmp_path / "project", "test")
    stub = project / "stub"
    stub.write_text(_STUB)
    venv = project / "scripts/venv"
    venv.write_text(
        f'{_STUB}mkdir -p "${{VENV_FOLDER:-.venv}}/bin"\n'
        'for name in pip pytest; do cp stub "${VENV_FOLDER:-.venv}/bin/$name"; done\n'
    )
    for program in (stub, venv):
        program.chmod(0o755)
    output = _run(project / "scripts/test", "--newest", "--unit", "-k", "x")
    calls = {line.split()[0]: line for line in output.splitlines()}
    assert calls["venv"] == "venv dev versions=newest folder=build/newest-python"
    assert "tests/unit tests/packaging/test_sources.py -k x" in calls["pytest"]
    assert _run(project / "scripts/test", "--unit").count("versions=newest") == 0


def test_newest_releases_are_installed_without_the_locked_versions(tmp_path: Path) -> None:
    """pip gets the locked versions as constraints, except for the newest releases."""
    project = _project(tmp_path / "project", "venv")
    (project / "requirements-locked.txt").write_text("pytest==1\n")
    folder = project / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "labledger-root").write_text(f"{project}\n")
    python = folder / "bin/python"
    python.write_text('#!/usr/bin/env bash\necho "python $*"\n')
    python.chmod(0o755)
    variables = {"VENV_FOLDER": "environment"}

    locked = _run(project / "scripts/venv", "dev", **variables)
    assert locked.count("--constraint requirements-locked.txt") == 3
    assert "up to date" in _run(project / "scripts/venv", "dev", **variables)
    for _ in range(2):
        newest = _run(project / "scripts/venv", "dev", **variables, VENV_VERSIONS="newest")
        assert newest.count("--upgrade --upgrade-strategy eager") == 3
        assert "--constraint" not in newest
    assert "--constraint" in _run(project / "scripts/venv", "dev", **variables)
