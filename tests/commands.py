"""Run labledger commands as processes: by a Python of their own, or by a fork of one.

A forked command is a process of its own, with its own streams, environment and folder, and ends as
any other does; only the imports, which take most of a short command's time, are done once for all
of them. Start a real process (`command_line`, `command_env`) for what a fork cannot show: signals,
what the interpreter itself reads from the environment, a missing library, a kill at a fault point.

As a script, this is the process that forks. It reads commands as JSON lines on stdin, and prints
for each `{"code", "stdout", "stderr"}`.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

CHECKOUT = Path(__file__).parent.parent

HEAVY = (
    *("rich.console", "rich.live", "rich.table", "rich.progress_bar", "yaml", "docker"),
    *("scipy.stats", "scipy.optimize", "labledger.maintenance.doctor", "labledger.cli.app"),
    *("labledger.api.ledger", "labledger.compare.compare", "labledger.report.run_report"),
    *("labledger.runner.start_and_resume", "labledger.ledger.verification.verify"),
    *("jsonschema", "labledger.cli.output.query_results", "labledger.cli.output.table_layout"),
)
"""What commands import late, and forked ones find imported."""

TIME_LIMIT_S = 240
"""After how long the kernel ends a forked command, with the exit code -14."""

STYLES = re.compile(r"\x1b\[(?!31;41m)[\d;]*m")
"""What rich draws with: all but the one that is in our hostile text."""
CURSOR = re.compile(r"\x1b\[(?:\?25[lh]|2K|\d*A)|\r")
"""How rich draws a live display anew."""
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31;41m\x9b1m\x7f\x08\r\u202e\u2066\u200b\u200d\u061c\u2028\u2029"
    "\ufeff\U000e0041\u115f\nforged: 99 of 99 slots committed"
)
"""Every kind of text that a terminal does not show, and a line that is none of ours."""


def command_line(*words: object) -> list[str]:
    """Return the words that start `labledger WORDS` by this Python."""
    return [sys.executable, "-m", "labledger", *map(str, words)]


def command_env(**changes: str) -> dict[str, str]:
    """Return the environment of a command: of labledger's own variables only those given."""
    kept = {name: value for name, value in os.environ.items() if name != "LABLEDGER_DIR"}
    kept |= {"PYTHONPATH": str(CHECKOUT), "PACE": "passing", "COLUMNS": "120"}
    return kept | changes


def run_real(*words: object, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `labledger WORDS` in a folder, by a Python of its own, to its end.

    `env` are changes to the environment.
    """
    return subprocess.run(
        command_line(*words),
        cwd=folder,
        env=command_env(**env),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )


def run_forked(*words: object, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `labledger WORDS` in a folder, by a fork, to its end.

    `env` are changes to the environment. Bytes of the output that are not UTF-8 are kept as
    surrogates.
    """
    code, stdout, stderr = _SERVER.run([*map(str, words)], folder, command_env(**env))
    return subprocess.CompletedProcess([*map(str, words)], code, stdout, stderr)


@dataclass(frozen=True)
class Case:
    """A command on a terminal."""

    words: Sequence[str]
    """Its words; or a lone `!NAME`, a function of the module `NAME` names, as `module:function`."""
    folder: Path
    columns: int = 100
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """What a terminal was sent, and the exit code."""

    words: Sequence[str]
    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without the styles, with the line ends that the command wrote."""
        return STYLES.sub("", self.raw.replace("\r\n", "\n"))

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines()]

    def hidden(self) -> set[str]:
        """Every character of it but line ends that a terminal does not show as itself."""
        text = CURSOR.sub("", self.text)
        kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
        return {c for c in text if (unicodedata.category(c) in kinds or c == "\u115f")} - {"\n"}

    def forged(self) -> list[str]:
        """Lines that hostile text made."""
        return [line for line in self.lines if line.startswith("forged")]


def show(cases: Sequence[Case]) -> list[Shown]:
    """Run each case, by a fork, on a terminal of its own."""
    shown = []
    for case in cases:
        env = command_env(TERM="xterm", **case.env)
        del env["COLUMNS"]  # It would be taken for the width of the terminal.
        code, output, _ = _SERVER.run(case.words, case.folder, env, case.columns)
        shown.append(Shown(case.words, code, output))
    return shown


class CommandServer:
    """The process that forks commands, started when the first one is asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, words: Sequence[str], folder: Path, env: Mapping[str, str], columns: int | None = None
    ) -> tuple[int, str, str]:
        """Return a command's exit code, stdout and stderr; on a terminal, all is stdout."""
        if self._process is None:
            own = command_env()
            own["PYTHONPATH"] += f":{Path(__file__).parent}"
            own["OPENBLAS_NUM_THREADS"] = "1"  # A process with other threads should not fork.
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=-1, stdout=-1, env=own, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"words": [*words], "folder": str(folder), "env": {**env}, "columns": columns}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["stdout"], answer["stderr"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


_SERVER = CommandServer()
stop_server = _SERVER.stop


def _serve() -> None:
    for name in HEAVY:
        importlib.import_module(name)
    from labledger.cli.app import app
    from labledger.errors import LabLedgerError

    # The parser of options imports more when it is first used.
    with suppress(LabLedgerError):
        app(["runs", "--lab-dir", "/nowhere"], standalone_mode=False)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        columns = request.pop("columns")
        answer = _in_files(**request) if columns is None else _on_terminal(columns, **request)
        print(json.dumps(answer), flush=True)


def _in_files(**command: Any) -> dict[str, Any]:
    """Run a command whose stdout and stderr are files."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = os.fork()
        if process == 0:
            with Path(os.devnull).open() as stdin:
                for number, file in enumerate((stdin, stdout, stderr)):
                    os.dup2(file.fileno(), number)
            _become(**command)
        code = _end_of(process)
        for file in (stdout, stderr):
            file.seek(0)
        return {"code": code, "stdout": _text(stdout.read()), "stderr": _text(stderr.read())}


def _on_terminal(columns: int, **command: Any) -> dict[str, Any]:
    """Run a command whose only streams are a terminal of a certain width."""
    process, master = pty.fork()
    if process == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        _become(**command)
    shown = b""
    # On Linux the end is an error: the terminal is gone.
    with suppress(OSError):
        while chunk := os.read(master, 1 << 16):
            shown += chunk
    os.close(master)
    return {"code": _end_of(process), "stdout": _text(shown), "stderr": ""}


def _end_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _become(words: list[str], folder: str, env: dict[str, str]) -> NoReturn:
    """Be the command, on the streams 0 to 2, and end with its code."""
    code = 99
    try:
        signal.alarm(TIME_LIMIT_S)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        encoding = env.get("PYTHONIOENCODING", "utf-8")
        sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding=encoding, closefd=False)  # noqa: SIM115
        sys.argv = ["labledger", *words]
        if words and words[0].startswith("!"):
            module, name = words[0][1:].split(":")
            getattr(importlib.import_module(module), name)()
            code = 0
        else:
            from labledger.__main__ import main

            main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
