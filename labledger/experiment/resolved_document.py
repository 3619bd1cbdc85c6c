"""Build the document of a resolved experiment: one JSON object with every default filled in.

The document (`resolved_experiment_v1`) is stored with a run and decides what runs. Its digest is
taken over `result_part`, so neither the defaults nor the keys here may change for documents that
exist. `resolve` and `new_grader` build documents; the runner and regrading read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labledger.experiment import name_references
from labledger.experiment.consistency_checks import PHASES, authored_variants, lookup, memory_bytes
from labledger.experiment.inputs.field_problems import FieldPath, UnusablePath, relative_name
from labledger.experiment.inputs.staged_files import StagedFile
from labledger.experiment.inputs.task_row import plain_number
from labledger.records import JsonObject, canonical_json

SCHEMA_VERSION = "resolved_experiment_v1"
DEPS = "/agentlab/deps"
"""Folder of the staged files in the container, with a subfolder for each phase."""

TIMEOUT_S = {"setup": 600, "agent": 600, "grader": 120}
"""Default time limits of the phases, in seconds."""

RUNTIME: JsonObject = {
    "image": None,
    "user": None,
    "network": "none",
    "root_read_only": False,
    "max_log_bytes": 1 << 20,
}
RESOURCES: JsonObject = {"cpus": 1, "memory": "1g", "pids": 512}
POLICY: JsonObject = {"grade_failed_agents": True}
DESIGN: JsonObject = {
    "replications": 1,
    "max_concurrency": 1,
    "schedule": "paired_interleaved",
    "random_seed": 0,
    "shuffle_tasks": False,
    "prune": None,
}
RETRY: JsonObject = {"max_attempts": 2, "retry_on": ["infra_error"]}


def base_sections(data: JsonObject) -> JsonObject:
    """Return the sections of the document that depend on the authored file alone.

    Defaults: the constants of this module; `suite_id` is the benchmark's name; `split_id` and the
    benchmark's `split` are each other's default, then ``test``; `adapter_id` is the benchmark's
    name and the evaluator ``<name>-grader``, `custom`. Time is in seconds, memory in bytes.
    """
    experiment, benchmark = data["experiment"], data["benchmark"]
    split_id = data["dataset"].get("split_id") or benchmark.get("split") or "test"
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": {
            "id": experiment["id"],
            "name": experiment.get("name", experiment["id"]),
            "description": experiment.get("description", ""),
            "tags": experiment.get("tags", []),
        },
        "dataset": _dataset(data["dataset"], benchmark["name"], split_id),
        "runtime": _runtime(data["runtime"]),
        "benchmark": _benchmark(benchmark, split_id),
        "metrics": [_metric(metric) for metric in data.get("metrics", [])],
        "design": _design(data.get("design", {})),
    }


def _dataset(authored: JsonObject, suite_id: str, split_id: str) -> JsonObject:
    dataset = {
        "path": authored["path"],
        "suite_id": authored.get("suite_id", suite_id),
        "split_id": split_id,
        "limit": authored.get("limit"),
    }
    if "cluster" in authored:
        dataset["cluster"] = authored["cluster"]
    return dataset


def _runtime(authored: JsonObject) -> JsonObject:
    runtime = RUNTIME | {key: authored[key] for key in RUNTIME.keys() & authored.keys()}
    resources = RESOURCES | authored.get("resources", {})
    # Absent unless authored, so that experiments without it keep their digests.
    oci = {"oci": authored["oci"]} if "oci" in authored else {}
    return runtime | {
        **oci,
        "user": _user(runtime["user"]),
        "agent_user": _user(authored["agent"].get("user")),
        "max_log_bytes": int(runtime["max_log_bytes"]),
        "resources": {
            "cpus": plain_number(resources["cpus"]),
            "memory_bytes": memory_bytes(resources["memory"]),
            "pids": int(resources["pids"]),
        },
    }


def _user(authored: Any) -> str | None:
    return None if authored is None else str(plain_number(authored))


def _benchmark(authored: JsonObject, split_id: str) -> JsonObject:
    name = authored["name"]
    benchmark = {
        "adapter_id": authored.get("adapter_id", name),
        "name": name,
        "split": authored.get("split", split_id),
        "policy": POLICY | authored.get("policy", {}),
        "evaluator": authored.get("evaluator", {"name": f"{name}-grader", "mode": "custom"}),
    }
    if "version" in authored:
        benchmark["version"] = authored["version"]
    return benchmark


def _metric(authored: JsonObject) -> JsonObject:
    filled = {key: authored.get(key) for key in ("pointer", "event", "field", "aggregate")}
    if authored["from"] == "events":
        filled["aggregate"] = authored.get("aggregate", "count")
    return {"id": authored["id"], "from": authored["from"], **filled}


def _design(authored: JsonObject) -> JsonObject:
    design = DESIGN | authored
    retry = RETRY | authored.get("retry", {})
    prune = authored.get("prune")
    return design | {
        **{key: int(design[key]) for key in ("replications", "max_concurrency", "random_seed")},
        "retry": {
            "max_attempts": int(retry["max_attempts"]),
            "retry_on": sorted(set(retry["retry_on"])),
        },
        "prune": prune and {"max_consecutive_failures": int(prune["max_consecutive_failures"])},
    }


def variant_sections(
    data: JsonObject, chosen: Sequence[str], files: Mapping[str, Sequence[StagedFile]]
) -> list[JsonObject]:
    """Return the `variants` of the document: those in `chosen`, in authored order."""
    sections = []
    for path, variant in authored_variants(data):
        if variant["variant_id"] not in chosen:
            continue
        bindings: JsonObject = variant.get("bindings", {})
        sections.append(
            {
                "variant_id": variant["variant_id"],
                "role": "baseline" if path == ("baseline",) else "treatment",
                "bindings": bindings,
                "setup": phase_section(data, "setup", bindings, files),
                "agent": phase_section(data, "agent", bindings, files),
            }
        )
    return sections


def phase_section(
    data: JsonObject,
    name: str,
    bindings: Mapping[str, Any],
    files: Mapping[str, Sequence[StagedFile]],
) -> JsonObject | None:
    """Return one phase with the variant's bindings substituted, or None if it is not authored.

    Names that the environment must set stay in the texts as `$NAME`. A word of the command that
    names a staged file or folder becomes its path in the container.
    """
    phase = lookup(data, PHASES[name])
    if phase is None:
        return None
    known = {key: _text(value) for key, value in bindings.items()}
    staged = _staged_paths(name, files.get(name, ()))
    env = phase.get("env", {})
    return {
        "command": [_word(_text(word), known, staged) for word in phase["command"]],
        "env": {key: name_references.substitute(_text(env[key]), known) for key in sorted(env)},
        "timeout_s": plain_number(phase.get("timeout_s", TIMEOUT_S[name])),
    }


def grader_section(data: JsonObject, files: Mapping[str, Sequence[StagedFile]]) -> JsonObject:
    """Return the grader, which is the same for all variants, and whether it is sealed."""
    section = phase_section(data, "grader", {}, files) or {}
    return section | {"sealed": bool(data["benchmark"]["grader"].get("sealed", False))}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json.dumps(value)


def _staged_paths(phase: str, files: Sequence[StagedFile]) -> dict[str, str]:
    """Return the container path of each staged file and each folder around it, by name."""
    paths: dict[str, str] = {}
    for file in files:
        steps = file.name.split("/")
        for depth in range(1, len(steps) + 1):
            name = "/".join(steps[:depth])
            paths[name] = f"{DEPS}/{phase}/{name}"
    return paths


def _word(authored: str, known: Mapping[str, str], staged: Mapping[str, str]) -> str:
    word = name_references.substitute(authored, known)
    path = staged.get(literal_name(word) or "")
    return word if path is None else name_references.escape(path)


def literal_name(word: str) -> str | None:
    """Return a word of a command as a relative file name, or None if it cannot be one."""
    if any(True for _ in name_references.names(word)):
        return None
    try:
        return relative_name(name_references.expand(word, {}))
    except UnusablePath:
        return None


def phases(document: JsonObject) -> Iterator[tuple[str, str | None, JsonObject]]:
    """Yield name, variant id (None for the grader) and section of each phase of a document."""
    for variant in document["variants"]:
        for name in ("setup", "agent"):
            if variant[name] is not None:
                yield name, variant["variant_id"], variant[name]
    yield "grader", None, document["grader"]


def authored_path(phase: str, path: FieldPath) -> FieldPath:
    """Return the path in the authored file of a text at `path` in a phase."""
    return (*PHASES[phase], *path)


def result_part(document: JsonObject) -> JsonObject:
    """Return the part of a resolved document that can change a result.

    It leaves out the number of trials that run at once; the experiment's name, description and
    tags; where its tasks were read from and how they were selected (the dataset's digest
    identifies them); `cluster`, which only comparisons use; the names of the environment, which
    the phases contain; and which run a regrading regrades, since its grader is included like any
    other.
    """
    left_out = {"environment", "experiment", "dataset", "design", "regrades"}
    part = {key: value for key, value in document.items() if key not in left_out}
    part["experiment"] = {"id": document["experiment"]["id"]}
    part["dataset"] = {key: document["dataset"][key] for key in ("suite_id", "split_id", "digest")}
    design = document["design"]
    part["design"] = {key: design[key] for key in design if key != "max_concurrency"}
    return part
