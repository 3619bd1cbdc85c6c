"""Agent profiles: what a profile must be, what one may say, and what starts an agent."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from labledger.agents.launch import (
    API,
    INSTRUCTION,
    LOGS,
    LOGS_FOLDER,
    MODEL,
    TOKEN,
    URL,
    resolve,
)
from labledger.agents.profiles import (
    ENTRY_POINT_GROUP,
    LAUNCH,
    PROFILE,
    STDOUT,
    OptionType,
    Registry,
    find_profiles,
    load_profile,
    read_profile,
)
from labledger.errors import InvalidInput
from labledger.records.model_calls import Api
from labledger.trajectories.agent_logs import READERS

BUILT_IN = [
    *("aider", "claude-code", "codex", "gemini-cli", "mini-swe-agent", "opencode", "qwen-code")
]
WITHOUT_READER = {"aider.chat"}
"""Logs that are texts for people."""
PRELUDE = Path(__file__).resolve().parents[2] / "labledger/agents/prelude.sh"

MINIMAL = """
schema_version = "agent_profile_v1"
name = "tiny"
description = "a tiny agent"
license = "MIT"
homepage = "https://example.org"
version = "1.0"
apis = ["openai-chat"]
[install]
from = "pypi"
package = "tiny-agent"
python = ["3.11", "3.14"]
[options.steps]
type = "integer"
description = "how many steps"
default = 5
arguments = ["--steps", "{value}"]
[options.quiet]
type = "boolean"
description = "prints nothing"
arguments = ["--quiet"]
[options.style]
type = "text"
description = "its style"
choices = ["short", "long"]
variable = "TINY_STYLE"
[options.warmth]
type = "number"
description = "the temperature"
arguments = ["--set", "warmth={value}"]
"""

WriteProfile = Callable[..., Path]


@pytest.fixture
def write_profile(tmp_path: Path) -> WriteProfile:
    """Writes a profile and returns its folder."""

    def written(text: str = MINIMAL, name: str = "tiny", launch: bool = True) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / PROFILE).write_text(text)
        if launch:
            (folder / LAUNCH).write_text('#!/bin/sh\n. "${0%/*}/prelude.sh"\n')
        return folder

    return written


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(InvalidInput) as raised:
        read_profile(folder)
    return [f"{problem.field}: {problem.message}" for problem in raised.value.problems]


def test_the_built_in_profiles() -> None:
    """Each folder of the package with a profile is an agent."""
    assert list(find_profiles()) == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_profile_keeps_the_contract(name: str) -> None:
    """A profile has a program, a licence, a pinned version, logs that are read, and real options.

    Its `launch.sh` is a shell script that begins with the prelude, passes on its arguments, reads
    the token from its variable alone, and mentions each API of several.
    """
    profile = load_profile(name)

    assert profile.name == profile.folder.name == name
    assert profile.license
    assert re.fullmatch(r"\d+(\.\d+)+", profile.version)
    [log] = profile.logs
    assert f"{name}.{log}" in set(READERS) | WITHOUT_READER
    launch = profile.folder / LAUNCH
    text = launch.read_text()
    assert text.startswith("#!/bin/sh\n")
    assert '\n. "${0%/*}/prelude.sh"\n' in text
    assert subprocess.run(["sh", "-n", launch], check=False).returncode == 0
    assert '"$@"' in text
    assert TOKEN in text
    assert "exec " in text
    if len(profile.apis) > 1:
        assert not [api for api in profile.apis if api.value not in text]
    for file in profile.logs.values():
        assert file == STDOUT or file in text
    if profile.source.registry is Registry.NPM and profile.source.native:
        assert set(profile.source.native) == {
            f"{machine}-{libc}" for machine in ("x86_64", "aarch64") for libc in ("glibc", "musl")
        }
    for option_name, option in profile.options.items():
        value = (
            option.choices[0]
            if option.choices
            else {"text": "a", "boolean": True}.get(option.type, 7)
        )
        given = resolve(profile, "model", {option_name: value})
        plain = resolve(profile, "model")
        assert (given.command, given.env) != (plain.command, plain.env) or value == option.default


def test_a_profile_is_read(write_profile: WriteProfile) -> None:
    """All fields have their values."""
    profile = read_profile(write_profile())

    assert profile.apis == (Api.OPENAI_CHAT,)
    assert profile.source.python == ((3, 11), (3, 14))
    assert profile.options["steps"].default == 5
    assert profile.options["quiet"].type is OptionType.BOOLEAN


def test_all_problems_of_a_profile_are_named_at_once(write_profile: WriteProfile) -> None:
    """Every problem of a profile is reported, with a near name or the expected value."""
    text = MINIMAL.replace("license", "licence").replace('"openai-chat"', '"openai"')
    text = text.replace('version = "1.0"', 'version = "latest"').replace('"integer"', '"int"')

    text_of_problems = "\n".join(problems_of(write_profile(text)))

    for expected in (
        "licence: unknown key 'licence'; did you mean 'license'?",
        "'license' is missing",
        'apis[0]: found "openai"',
        'version: found "latest"',
        "options.steps.type",
    ):
        assert expected in text_of_problems


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('python = ["3.11", "3.14"]', "", "'python' is missing"),
        ('from = "pypi"', 'from = "npm"', "install.python: a package of npm needs no Python"),
        ('arguments = ["--quiet"]', "", "options.quiet: expected arguments or a variable"),
        ("default = 5", 'default = "many"', "options.steps.default: found 'many'"),
        ("default = 5", 'choices = ["5"]', "options.steps.choices: only a text has choices"),
        ('name = "tiny"', 'name = "teeny"', "name: found 'teeny' in the folder 'tiny'"),
    ],
)
def test_contradictions_in_a_profile_are_refused(
    write_profile: WriteProfile, before: str, after: str, expected: str
) -> None:
    """Values that are valid alone but contradict each other are a problem of the file."""
    [problem] = problems_of(write_profile(MINIMAL.replace(before, after, 1)))
    assert expected in problem


def test_a_profile_without_a_program_is_refused(write_profile: WriteProfile) -> None:
    """`launch.sh` must be there."""
    assert problems_of(write_profile(launch=False)) == ["None: there is no launch.sh beside it"]


def test_options_become_arguments_and_variables(write_profile: WriteProfile) -> None:
    """Option values may be text, as from a command line, and options have defaults."""
    profile = read_profile(write_profile())
    options = {"quiet": "true", "style": "long", "warmth": 0.5}

    launch = resolve(profile, "vendor/model-1", options)

    assert launch.command == (
        "/opt/labledger/agents/tiny/launch",
        *("--steps", "5", "--quiet", "--set", "warmth=0.5"),
    )
    assert launch.env == {
        MODEL: "vendor/model-1",
        API: "openai-chat",
        LOGS: LOGS_FOLDER,
        "TINY_STYLE": "long",
    }
    assert launch.options == {"steps": 5, "quiet": True, "style": "long", "warmth": 0.5}
    assert "--quiet" not in resolve(profile, "m", {"quiet": False}).command


def test_unusable_options_are_refused_together(write_profile: WriteProfile) -> None:
    """Unknown names get a near one; types, choices and the API are checked."""
    profile = read_profile(write_profile())
    given = {"step": 5, "steps": "five", "quiet": 1, "style": "medium", "warmth": True}

    with pytest.raises(InvalidInput) as raised:
        resolve(profile, "", given, api=Api.GEMINI)

    messages = [f"{problem.field}: {problem.message}" for problem in raised.value.problems]
    assert messages == [
        "step: unknown option; did you mean 'steps'?",
        "steps: found 'five'; expected a value of the type integer",
        "quiet: found 1; expected a value of the type boolean",
        "style: found 'medium'; expected one of short, long",
        "warmth: found True; expected a value of the type number",
        "model: found ''; expected a model's name, without spaces and quotes",
        "None: tiny does not speak gemini; it speaks openai-chat",
    ]


@pytest.mark.parametrize("model", ["a b", 'a"b', "a\n", "$a", "a\\b", "-a", "a'b"])
def test_a_model_that_could_end_a_setting_is_refused(model: str) -> None:
    """A model name that `launch.sh` could write as the end of a setting is refused."""
    with pytest.raises(InvalidInput, match="expected a model's name"):
        resolve(load_profile("opencode"), model)


def test_an_unknown_agent_gets_a_near_name() -> None:
    """A misspelt agent is refused, and the agent that was probably meant is named."""
    with pytest.raises(InvalidInput, match="did you mean 'claude-code'"):
        load_profile("claude-cod")


def installed_package(
    folder: Path, package: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put a package with an entry point of an agent on the path."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{package}.py").write_text(f"FOLDER = {value!r}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{name} = {package}:FOLDER\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_a_package_adds_a_profile(
    write_profile: WriteProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry point that is the path of a profile's folder adds an agent.

    Entry points are found, too, where the package importlib_metadata finds them, which libraries
    of ours bring on Python 3.11 alone.
    """
    value = str(write_profile())
    installed_package(tmp_path / "site", "tiny_package", "tiny", value, monkeypatch)

    assert load_profile("tiny").description == "a tiny agent"
    if importlib.util.find_spec("importlib_metadata") is not None:
        importlib.import_module("importlib_metadata")
    assert load_profile("tiny").description == "a tiny agent"
    assert list(find_profiles()) == sorted([*BUILT_IN, "tiny"])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("codex", "/nowhere", "the packages bad_package and labledger both have an agent profile"),
        ("tiny", "/nowhere/tiny", "/nowhere/tiny/profile.toml: No such file or directory"),
    ],
)
def test_a_bad_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    """Two packages that add the same agent, and a missing profile folder, are refused."""
    installed_package(tmp_path / "site", "bad_package", name, value, monkeypatch)

    with pytest.raises(InvalidInput) as raised:
        find_profiles()
    assert expected in raised.value.message


def run_prelude(folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a `launch` that prints what the prelude has set."""
    (folder / "prelude.sh").write_bytes(PRELUDE.read_bytes())
    (folder / "task.txt").write_text("a task")
    launch = folder / "launch"
    launch.write_text('. "${0%/*}/prelude.sh"\necho "$HOME"; echo "$settings"; echo "$agent"\n')
    (folder / "home").mkdir()
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder),
        MODEL: "m",
        API: "gemini",
        URL: "http://127.0.0.1:1/p",
        TOKEN: "t",
        INSTRUCTION: str(folder / "task.txt"),
        LOGS: str(folder / "out/agent"),
    }
    given = {name: value for name, value in {**env, **changes}.items() if value}
    return subprocess.run(["sh", launch], env=given, capture_output=True, text=True, check=False)


def test_the_prelude_keeps_a_home_that_can_be_written(tmp_path: Path) -> None:
    """HOME stays unchanged and empty, and settings get a new private folder."""
    done = run_prelude(tmp_path)

    home, settings, agent = done.stdout.split()
    assert home == str(tmp_path / "home")
    assert not list((tmp_path / "home").iterdir())
    assert Path(settings).stat().st_mode & 0o777 == 0o700
    assert agent == str(tmp_path)
    assert (tmp_path / "out/agent").is_dir()


@pytest.mark.parametrize("home", ["", "/proc", "/nowhere"])
def test_the_prelude_replaces_a_home_that_cannot_be_written(tmp_path: Path, home: str) -> None:
    """Without a usable HOME the agent gets one among its settings."""
    done = run_prelude(tmp_path, HOME=home)

    new, settings, _ = done.stdout.split()
    assert new == f"{settings}/home"
    assert Path(new).is_dir()


@pytest.mark.parametrize("name", [MODEL, API, URL, TOKEN, INSTRUCTION])
def test_the_prelude_refuses_a_start_by_hand(tmp_path: Path, name: str) -> None:
    """A variable that is not set is named, and no agent is started."""
    done = run_prelude(tmp_path, **{name: ""})

    assert done.returncode
    assert name in done.stderr
    assert not done.stdout


def test_an_option_has_the_value_of_its_type() -> None:
    """Texts of a command line are read by the option's type; a number is no boolean."""
    assert OptionType.INTEGER.read("12") == 12
    assert OptionType.NUMBER.read("1.5") == 1.5
    assert OptionType.NUMBER.read(2) == 2
    assert OptionType.BOOLEAN.read("false") is False
    assert OptionType.TEXT.read("12") == "12"
    assert OptionType.INTEGER.read(1.5) is None
    assert OptionType.BOOLEAN.read("yes") is None
    assert OptionType.TEXT.read(12) is None
