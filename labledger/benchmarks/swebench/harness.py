"""Run the `swebench` package to prepare rows and to judge logs.

Each question starts a process of `harness_program`. The package imports large libraries, reads
`.env` files, and parses text that agents can shape. In a separate process, its memory and time are
limited, and it sees no secrets of the caller's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labledger.errors import LabLedgerError
from labledger.files.lab_folder import scratch_folder
from labledger.host_programs import SAFE_FOLDER, file_command
from labledger.records import JsonObject

_PROGRAM = Path(__file__).with_name("harness_program.py")
_PREPARE_LIMIT_S = 600
_JUDGE_LIMIT_S = 300
_PASSED_VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR")
_MESSAGE_CHARACTERS = 500


class HarnessFailed(LabLedgerError):
    """The `swebench` package could not answer."""


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """The package's form of a row."""

    eval_script: str
    """The row's script in the package's form, which also records the tests' exit status."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The package's report about a log."""

    report: JsonObject
    """The report of the instance, with the statuses of its tests."""
    has_test_output: bool
    """Whether the log has both marks around the tests' output."""


@cache
def harness_version() -> str:
    """Return the version of the installed `swebench` package."""
    return version("swebench")


def prepare_rows(rows: Sequence[JsonObject]) -> list[PreparedRow | str]:
    """Return the prepared form of each row, or the reason why it cannot be judged.

    Raises `HarnessFailed`.
    """
    answer = _ask({"operation": "prepare", "rows": list(rows)}, _PREPARE_LIMIT_S)
    return [
        item["problem"]
        if "problem" in item
        else PreparedRow(
            item["eval_script"], tuple(item["fail_to_pass"]), tuple(item["pass_to_pass"])
        )
        for item in answer["rows"]
    ]


def eval_report(instance: JsonObject, model_patch: str | None, log: bytes) -> EvalReport:
    """Return the package's report about the log of an instance's tests.

    `instance` has the row's fields that `harness_program` reads. A `model_patch` of None means no
    prediction. Raises `HarnessFailed`, also if the package takes too long.
    """
    with scratch_folder("swebench") as folder:
        path = folder / "test_output.txt"
        # The package decodes a log strictly, and writes it with undecodable bytes replaced.
        path.write_text(log.decode(errors="replace"), "utf-8", newline="")
        question = {
            "operation": "report",
            "instance": instance,
            "model_patch": model_patch,
            "log": str(path),
        }
        answer = _ask(question, _JUDGE_LIMIT_S)
    return EvalReport(answer["report"], answer["has_test_output"])


def _ask(question: JsonObject, limit_s: int) -> Any:
    environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    # No imported library may look for data sets or models in the network.
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    try:
        done = subprocess.run(
            file_command(_PROGRAM, str(limit_s)),
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=limit_s,
            env=environment,
            # The package reads `.env` files of its working directory.
            cwd=SAFE_FOLDER,
            check=True,
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise HarnessFailed(f"the swebench package took longer than {limit_s} s") from error
    except subprocess.CalledProcessError as error:
        last_words = error.stderr.decode(errors="replace").strip()[-_MESSAGE_CHARACTERS:]
        raise HarnessFailed(
            f"the swebench package failed with exit status {error.returncode}: {last_words}"
        ) from error
    except ValueError as error:
        raise HarnessFailed(f"the swebench package gave no answer: {error}") from error
