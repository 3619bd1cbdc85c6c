"""Run commands on pseudo-terminals, many of them in one process that has imported what they need.

As a script, it reads cases as JSON lines on stdin, each `{"words", "columns", "folder", "env"}`,
and prints for each `{"code", "shown"}`. Each case runs in a process forked for it, whose only
streams are the terminal.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEAVY = (
    *("rich.console", "rich.live", "rich.table", "rich.progress_bar", "yaml", "docker"),
    *("scipy.stats", "scipy.optimize", "labledger.maintenance.doctor", "statsmodels.stats.power"),
    *("statsmodels.stats.multitest", "statsmodels.stats.proportion"),
    *("labledger.cli.app", "labledger.api.ledger", "labledger.compare.compare"),
    *(
        "labledger.report.rendering",
        "labledger.runner.start_and_resume",
        "labledger.ledger.verification.verify",
    ),
)
STYLES = re.compile(r"\x1b\[(?!31;41m)[\d;]*m")
"""What rich draws with: all but the one that is in our hostile text."""
CURSOR = re.compile(r"\x1b\[(?:\?25[lh]|2K|\d*A)|\r")
"""How rich draws a live display anew."""
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31;41m\x9b1m\x7f\x08\r\u202e\u2066\u200b\u200d\u061c\u2028\u2029"
    "\ufeff\U000e0041\u115f\nforged: 99 of 99 slots committed"
)
"""Every kind of text that a terminal does not show, and a line that is none of ours."""


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
    """Run each case on a terminal of its own."""
    told = "".join(
        json.dumps([[*case.words], case.columns, str(case.folder), {**case.env}]) + "\n"
        for case in cases
    )
    from experiments import command_env

    # COLUMNS would be taken for the width of the terminal.
    env = {k: v for k, v in command_env(TERM="xterm").items() if k != "COLUMNS"}
    env["PYTHONPATH"] += f":{Path(__file__).parent}"
    done = subprocess.run(
        [sys.executable, __file__], input=told, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [Shown(case.words, *answer) for case, answer in zip(cases, answers, strict=True)]


def _main() -> None:
    for name in HEAVY:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        words, columns, folder, env = json.loads(line)
        print(json.dumps(_on_terminal(words, columns, folder, env)), flush=True)


def _on_terminal(
    words: list[str], columns: int, folder: str, env: dict[str, str]
) -> tuple[int, str]:
    process, master = pty.fork()
    if process == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.chdir(folder)
        os.environ.update(env)
        _become(words)
    shown = b""
    while True:
        try:
            shown += (chunk := os.read(master, 1 << 16))
        except OSError:
            break
        if not chunk:
            break
    _, status = os.waitpid(process, 0)
    os.close(master)
    return os.waitstatus_to_exitcode(status), shown.decode("utf-8", "surrogateescape")


def _become(words: list[str]) -> None:
    """Be the command, on streams that are the terminal, and end with its code."""
    code = 99
    try:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.argv = ["labledger", *words]
        if words[0].startswith("!"):
            module, name = words[0][1:].split(":")
            getattr(importlib.import_module(module), name)()
            code = 0
        else:
            from labledger.cli.app import main

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
    _main()
