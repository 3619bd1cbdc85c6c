"""Translate a benchmark into the files of an ordinary experiment.

The same input gives the same bytes. `labledger init --from` writes the files to a folder to edit. A
run has them in the lab folder, in a complete folder that is named by its digest. Code below the API
does not know that it is a benchmark.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from labledger.benchmarks.formats import BenchmarkAgent, TranslatedBenchmark
from labledger.benchmarks.task_selection import refusals, selects
from labledger.errors import InvalidInput, LabLedgerError, Parameter, Problem
from labledger.files.durable_files import (
    FileContent,
    LinkTo,
    content_key,
    content_on_disk,
    filled_folder,
    make_folder,
    sync_folder,
    sync_tree,
    write_content,
)
from labledger.files.lab_folder import scratch_folder
from labledger.files.untrusted_files import is_safe_name
from labledger.records import JsonObject
from labledger.text.escaping import escape_line
from labledger.text.words import counted

if TYPE_CHECKING:
    import yaml


EXPERIMENT_FILE = "experiment.yaml"
TASKS_FILE = "tasks.jsonl"

_YAML_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")
_ENV_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):-(.*)\}", re.DOTALL)
_MAX_REASON, _MAX_REASONS, _MIN_REASON = 500, 1_000_000, 40
"""The most characters of one reason, and of all reasons, that an experiment records.

The last one is the least for each reason. Experiment files have a limit of their own.
"""
_MAX_SKIPPED = 10_000
"""The most refused tasks that an experiment records by id."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_COMMENTS = {
    "dataset": "The tasks that the agent sees, one JSON object a line.",
    "baseline": "An agent that comes with the benchmark. To measure your own, change\n"
    "runtime.agent and bind here what differs between its variants.",
    "runtime": "Every trial has a container of this image.",
    "benchmark": "How answers are graded, in the same container, after the agent has ended.",
    "metrics": "The values that are stored for each trial, in addition to the verdict.",
    "images": "How images are built that this machine does not have and cannot pull.",
}


@dataclass(frozen=True)
class TranslatedExperiment:
    """The files of an experiment by relative name, `experiment.yaml` first."""

    name: str
    files: dict[str, FileContent]

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over the names and contents of all files."""
        hasher = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            hasher.update(os.fsencode(f"{name}\0{content_key(content)}\0"))
        return hasher.hexdigest()


def translate(
    benchmark: TranslatedBenchmark,
    *,
    default_image: str,
    agents: Sequence[str] = (),
    image: str | None = None,
    experiment_id: str | None = None,
    outside: Mapping[str, str] | None = None,
    task_globs: Sequence[str] = (),
) -> TranslatedExperiment:
    """Return the experiment that runs `agents` on every task of a benchmark that can be run.

    - `agents` are names of the benchmark's agents, by default all. Each is a variant, and the first
      one is the baseline.
    - `image` overrides the benchmark's image. `default_image` is used if neither exists.
    - `outside` has the variables that the environment sets. `${NAME:-DEFAULT}` refers to NAME if it
      is among them, and is empty if NAME is empty.
    - `task_globs` select the tasks whose variables the agents get. The experiment has all tasks.

    Raises `InvalidInput` for an unknown agent, for an `image` if all tasks have their own, and if
    no task can be run.
    """
    _require_usable(benchmark)
    chosen = _chosen_agents(benchmark, agents)
    if not benchmark.tasks:
        raise InvalidInput(
            f"{benchmark.name} has no task that can be run",
            refusals(benchmark) or [Problem(benchmark.name, "contains no task")],
        )
    rows = [_row_for(row, [agent.name for agent in chosen]) for row in benchmark.tasks]
    used_image = _image(benchmark, image, default_image)
    variants = [_variant(agent, task_globs) for agent in chosen]
    document = _document(benchmark, chosen, variants, used_image, experiment_id or benchmark.name)
    document = _without_env_defaults(document, outside or {})
    rows = [_without_env_defaults(row, outside or {}) for row in rows]
    tasks = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    files: dict[str, FileContent] = {TASKS_FILE: tasks.encode()}
    files |= _needed_files(benchmark, rows)
    for agent in chosen:
        files |= agent.files
    text = _experiment_text(benchmark, document)
    return TranslatedExperiment(
        benchmark.name, {EXPERIMENT_FILE: text.encode(), **dict(sorted(files.items()))}
    )


def _image(benchmark: TranslatedBenchmark, given: str | None, default: str) -> str | None:
    """Return the experiment's image; None if every task has its own."""
    default_image: str | None = benchmark.defaults["runtime"].get("image")
    if all("image" in row for row in benchmark.tasks) and not default_image:
        if given is not None:
            problem = Problem(
                Parameter("image"), f"every task of {benchmark.name} names its own image"
            )
            raise InvalidInput("the options are not valid", [problem])
        return None
    return given or default_image or default


def _row_for(row: JsonObject, variants: Sequence[str]) -> JsonObject:
    """Return a task's row without files that only other variants get."""
    if "files" not in row:
        return row
    entries = []
    for entry in row["files"]:
        if "variants" in entry:
            entry = {**entry, "variants": [v for v in entry["variants"] if v in variants]}
            if not entry["variants"]:
                continue
        entries.append(entry)
    others = {key: value for key, value in row.items() if key != "files"}
    return {**others, "files": entries} if entries else others


def _needed_files(
    benchmark: TranslatedBenchmark, rows: Sequence[JsonObject]
) -> dict[str, FileContent]:
    """Return the benchmark's files without the folders of dropped entries."""
    before, after = (
        {e["directory"] for row in some for e in row.get("files", ()) if "directory" in e}
        for some in (benchmark.tasks, rows)
    )
    dropped = before - after
    return {
        name: content
        for name, content in benchmark.files.items()
        if not any(str(folder) in dropped for folder in PurePosixPath(name).parents)
    }


def _without_env_defaults(value: Any, outside: Mapping[str, str]) -> Any:
    """Return a section whose `env` values have their defaults replaced."""
    if isinstance(value, list):
        return [_without_env_defaults(item, outside) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name: _without_default(text, outside) for name, text in item.items()}
        if key == "env" and isinstance(item, dict)
        else item
        if key in ("task", "bindings")
        else _without_env_defaults(item, outside)
        for key, item in value.items()
    }


def _without_default(text: Any, outside: Mapping[str, str]) -> Any:
    match = _ENV_DEFAULT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return text
    name, default = match.groups()
    if name not in outside:
        return str(default).replace("$", "$$")
    # A run refuses an empty variable, which is usually a lost secret. This one may be empty.
    return f"${{{name}}}" if outside[name].strip() else ""


def _require_usable(benchmark: TranslatedBenchmark) -> None:
    """Raise `InvalidInput` for values that a format of another package must not return."""
    problems = []
    if not _NAME.fullmatch(benchmark.name):
        problems.append(f"its name {benchmark.name!r} is not of letters, digits and _ . -")
    if not benchmark.agents:
        problems.append("it has no agent")
    for section, phase in (("runtime", "agent"), ("benchmark", "grader")):
        if not isinstance(benchmark.defaults.get(section), dict) or not isinstance(
            benchmark.defaults[section].get(phase), dict
        ):
            problems.append(f"its defaults have no {section}.{phase}")
    contents = dict(benchmark.files)
    for agent in benchmark.agents:
        contents |= agent.files
    names = contents.keys()
    problems += [
        f"its file {name!r} cannot be written beside {EXPERIMENT_FILE}"
        for name in sorted(names)
        if name in {EXPERIMENT_FILE, TASKS_FILE} or not is_safe_name(name)
    ]
    links = {name for name, content in contents.items() if isinstance(content, LinkTo)}
    problems += [
        f"its file {name!r} is below a link"
        for name in sorted(names)
        if any(str(folder) in links for folder in PurePosixPath(name).parents)
    ]
    try:
        settings = [
            [agent.bindings, agent.runtime, dict(agent.task_env)] for agent in benchmark.agents
        ]
        json.dumps([*benchmark.tasks, benchmark.defaults, settings])
    except (TypeError, ValueError, RecursionError) as error:
        problems.append(f"its tasks, defaults or bindings are not JSON: {error}")
    if problems:
        hint = "report it to the authors of the format"
        raise InvalidInput(
            "the benchmark cannot be used",
            [Problem(benchmark.name, message, hint=hint) for message in problems],
        )


def _chosen_agents(benchmark: TranslatedBenchmark, names: Sequence[str]) -> list[BenchmarkAgent]:
    known = {agent.given_as or agent.name: agent for agent in benchmark.agents}
    hint = "`labledger init --from` writes the experiment, for an agent of your own"
    problems = [
        Problem(
            Parameter("agents"),
            f"{name!r} does not come with {benchmark.name}; agents: " + ", ".join(known),
            hint=hint,
        )
        for name in names
        if name not in known
    ]
    if problems:
        raise InvalidInput("the agents given", problems)
    return [known[name] for name in dict.fromkeys(names or known)]


def _document(
    benchmark: TranslatedBenchmark,
    agents: list[BenchmarkAgent],
    variants: list[JsonObject],
    image: str | None,
    experiment_id: str,
) -> JsonObject:
    """Return `experiment.yaml` as JSON, with its sections in the written order."""
    defaults = benchmark.defaults
    runtime: JsonObject = {} if image is None else {"image": image}
    runtime |= {key: value for key, value in defaults["runtime"].items() if key != "image"}
    own_files = sorted({name for agent in agents for name in agent.files})
    files = [*runtime["agent"].get("files", []), *own_files]
    runtime["agent"] = {**runtime["agent"], **({"files": files} if files else {})}
    document: JsonObject = {
        "experiment": {"id": experiment_id, "tags": [benchmark.name]},
        "dataset": {
            "path": TASKS_FILE,
            "suite_id": benchmark.name,
            "split_id": benchmark.split,
            **({"cluster": benchmark.cluster} if benchmark.cluster else {}),
            **({"skipped": _skipped(benchmark)} if benchmark.refused else {}),
        },
        "baseline": variants[0],
        "variant_plan": variants[1:],
        "runtime": runtime,
        "benchmark": {
            "adapter_id": benchmark.name,
            "name": benchmark.name,
            "version": benchmark.version,
            "split": benchmark.split,
            **defaults["benchmark"],
        },
        "metrics": defaults.get("metrics"),
        "design": defaults.get("design"),
        "images": defaults.get("images"),
    }
    return {section: value for section, value in document.items() if value}


def _skipped(benchmark: TranslatedBenchmark) -> list[JsonObject]:
    """Return the refused tasks as the experiment and its runs record them."""
    named = benchmark.refused[:_MAX_SKIPPED]
    most = max(_MIN_REASON, min(_MAX_REASON, _MAX_REASONS // len(named)))
    skipped = [
        {
            "id": task.task_id[:_MAX_REASON],
            "reason": escape_line(" ".join(task.reason.split()))[:most],
        }
        for task in named
    ]
    if len(benchmark.refused) > len(named):
        more = len(benchmark.refused) - len(named)
        skipped.append({"id": "…", "reason": f"{more:,} more tasks cannot be run"})
    return skipped


def _variant(agent: BenchmarkAgent, task_globs: Sequence[str]) -> JsonObject:
    variant: JsonObject = {"variant_id": agent.name}
    if agent.description:
        variant["description"] = agent.description
    if agent.bindings:
        variant["bindings"] = agent.bindings
    runtime = dict(agent.runtime)
    env = {
        name: value
        for task_id, task_settings in agent.task_env.items()
        if selects(task_globs, task_id)
        for name, value in task_settings.items()
    }
    if env:
        own_agent = runtime.get("agent", {})
        runtime["agent"] = {**own_agent, "env": {**own_agent.get("env", {}), **env}}
    if runtime:
        variant["runtime"] = runtime
    return variant


def _experiment_text(benchmark: TranslatedBenchmark, document: JsonObject) -> str:
    import yaml

    head = [
        f"{benchmark.name}, {counted(len(benchmark.tasks), 'task')}, version {benchmark.version}."
    ]
    head += benchmark.description.splitlines()
    if benchmark.refused:
        count = counted(len(benchmark.refused), "other task")
        head.append(f"{count} cannot be run here: dataset.skipped says why.")
    parts = ["".join(f"# {' '.join(line.split())}\n" for line in head)]
    for section, value in document.items():
        text = _COMMENTS.get(section, "")
        if section == "runtime" and "image" not in value:
            text = "Every trial has a container of its task's image."
        comment = "".join(f"# {line}\n" for line in text.splitlines())
        body = yaml.dump(
            {section: value}, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=100
        )
        parts.append(comment + body)
    return "\n".join(parts)


def _dumper() -> type[yaml.SafeDumper]:
    """Return a dumper that quotes text that YAML 1.2 reads as a number, such as 12e4."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _YAML_NUMBER, list("-+.0123456789"))
    return Dumper


_DIGITS = 16


@contextmanager
def temporary_copy(experiment: TranslatedExperiment) -> Iterator[Path]:
    """Yield the path of `experiment.yaml` in a folder that exists while the block runs.

    An error from the block names the benchmark instead of the folder.
    """
    with scratch_folder("experiment") as folder:
        _write_files(experiment, folder)
        try:
            yield folder / EXPERIMENT_FILE
        except LabLedgerError as error:
            error.args = (without_folder(error.message, folder, experiment.name),)
            raise


def without_folder(message: str, folder: Path, name: str) -> str:
    """Return a message in which the benchmark's name replaces the folder of a temporary copy."""
    return message.replace(f"{folder}/", f"{name}: ")


def store_experiment(experiment: TranslatedExperiment, folder: Path) -> Path:
    """Return the path of `experiment.yaml` in `folder`/NAME-DIGEST. Write it if it is missing.

    Raises `InvalidInput` if a file there was changed, and `LabLedgerError` if the folder cannot be
    written.
    """
    target = folder / f"{experiment.name}-{experiment.digest[:_DIGITS]}"
    try:
        if not target.is_dir():
            make_folder(folder)
            with filled_folder(target) as unfinished:
                _write_files(experiment, unfinished)
                sync_tree(unfinished)
            sync_folder(folder)
        _require_same(experiment, target)
    except OSError as error:
        raise LabLedgerError(f"could not write {target}: {error.strerror}") from error
    return target / EXPERIMENT_FILE


def _require_same(experiment: TranslatedExperiment, target: Path) -> None:
    changed = [
        Problem(str(target / name), "differs from the translation of the benchmark")
        for name, content in experiment.files.items()
        if (present := content_on_disk(target / name)) is None
        or content_key(present) != content_key(content)
    ]
    if changed:
        hint = f"`labledger init --from` makes a copy to edit; remove {target} to have it anew"
        raise InvalidInput(f"{target} has been changed", changed, hint=hint)


def _write_files(experiment: TranslatedExperiment, folder: Path) -> None:
    for name, content in experiment.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_content(path, content)
