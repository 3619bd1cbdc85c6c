"""The program that runs the `swebench` package: a question as JSON on stdin, an answer on stdout.

It is started as a process, never imported. A report imports only the package's modules for grading,
which takes a tenth of a second. `swebench.harness` itself would import libraries for data sets and
cloud services.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_MAX_MEMORY_BYTES = 4 << 30


def prepare(question: dict[str, Any]) -> dict[str, Any]:
    """Return the prepared script and the tests of each row, or its problem."""
    from swebench.harness.constants import EvalType
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    def prepare_row(row: dict[str, Any]) -> dict[str, Any]:
        if row["log_parser"] not in PARSER_REGISTRY:
            return {"problem": f"the swebench package has no log parser {row['log_parser']!r}"}
        if row["eval_type"] not in [kind.value for kind in EvalType]:
            return {"problem": f"the swebench package has no eval_type {row['eval_type']!r}"}
        spec = make_test_spec(row)
        return {
            "eval_script": spec.eval_script,
            "fail_to_pass": spec.FAIL_TO_PASS,
            "pass_to_pass": spec.PASS_TO_PASS,
        }

    return {"rows": [prepare_row(row) for row in question["rows"]]}


def report(question: dict[str, Any]) -> dict[str, Any]:
    """Return the package's report about a log, and whether the log has test output."""
    get_eval_report, constants, spec_type = _grading_modules()
    instance = question["instance"]
    spec = spec_type(
        instance_id=instance["instance_id"],
        image=instance["image"],
        eval_script_list=[],
        repo=instance["repo"],
        version=instance["version"],
        FAIL_TO_PASS=instance["FAIL_TO_PASS"],
        PASS_TO_PASS=instance["PASS_TO_PASS"],
        log_parser=instance["log_parser"],
        eval_type=instance["eval_type"],
    )
    prediction = {
        "instance_id": spec.instance_id,
        "model_name_or_path": "labledger",
        "model_patch": question["model_patch"],
    }
    reports = get_eval_report(spec, prediction, question["log"], include_tests_status=True)
    with open(question["log"], encoding="utf-8") as file:  # noqa: PTH123
        log = file.read()
    marks = (constants.START_TEST_OUTPUT, constants.END_TEST_OUTPUT)
    return {
        "report": reports[spec.instance_id],
        "has_test_output": all(mark in log for mark in marks),
    }


def _grading_modules() -> tuple[Callable[..., dict[str, Any]], Any, Any]:
    """Return the package's `get_eval_report`, constants and `TestSpec`."""
    package = find_spec("swebench")
    if package is not None and package.submodule_search_locations:
        folder = ModuleType("swebench.harness")
        folder.__path__ = [f"{package.submodule_search_locations[0]}/harness"]
        sys.modules["swebench.harness"] = folder
    try:
        from swebench.harness import constants
        from swebench.harness.grading import get_eval_report
    except ImportError:
        # Another version may need the imports of its own `__init__`.
        for name in [name for name in sys.modules if name.startswith("swebench")]:
            del sys.modules[name]
        from swebench.harness import constants
        from swebench.harness.grading import get_eval_report
    from swebench.types import TestSpec

    return get_eval_report, constants, TestSpec


def main() -> None:
    limit_s = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    answer_file = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Keep the package's own output out of the answer.
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    operation = {"prepare": prepare, "report": report}[question["operation"]]
    with answer_file:
        json.dump(operation(question), answer_file)


if __name__ == "__main__":
    main()
