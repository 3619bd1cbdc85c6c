"""Resolve an authored experiment: fill in defaults, select variants and tasks, digest files.

`resolve` writes nothing; `ResolvedExperiment.freeze` puts files into the artifact store, and fails
if one has changed since. Preflight, `labledger run --dry-run` and the runner start from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Self

from labledger.errors import ExperimentChanged, InvalidInput, Problem
from labledger.experiment import resolved_document as documents
from labledger.experiment import schedule
from labledger.experiment.authored import Authored
from labledger.experiment.consistency_checks import PHASES, authored_variants, lookup, phase_texts
from labledger.experiment.inputs import staged_files
from labledger.experiment.inputs.dataset import Dataset, Selection, TaskRef, read_tasks
from labledger.experiment.inputs.field_problems import FieldPath, UnusablePath
from labledger.experiment.inputs.staged_files import StagedFile
from labledger.experiment.name_references import is_contract_name, names
from labledger.records import JsonObject, canonical_json
from labledger.records.identity import Slot
from labledger.storage.artifact_store import ArtifactStore
from labledger.text.phrases import near_names


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line changes in an authored experiment.

    `tasks` and `variants` are globs (`fnmatch`, case-sensitive) and select what any of them
    matches; each must match something. `limit` selects the first so many of the tasks left by
    `dataset.limit` and `tasks`, so it can only reduce the authored experiment.
    """

    limit: int | None = None
    tasks: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    max_concurrency: int | None = None

    @classmethod
    def from_document(cls, document: JsonObject, *, max_concurrency: int | None = None) -> Self:
        """Return the overrides that a resolved document was made with, to resolve it again."""
        filters = document["dataset"]["filters"]
        tasks, variants = tuple(filters["tasks"]), tuple(filters["variants"])
        return cls(filters["limit"], tasks, variants, max_concurrency)


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment with every default filled in and every file and task digested."""

    authored: Authored
    document: JsonObject
    """The `resolved_experiment_v1`, as JSON values."""
    dataset: Dataset
    files: Mapping[str, tuple[StagedFile, ...]]
    """Staged files by phase name."""

    @property
    def source(self) -> Path:
        return self.authored.path.absolute()

    @property
    def authored_text(self) -> str:
        return self.authored.text

    @property
    def tasks(self) -> tuple[TaskRef, ...]:
        """The selected tasks, in the file's order."""
        return self.dataset.tasks

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """The selected variants' ids, the baseline first if it is selected."""
        return tuple(variant["variant_id"] for variant in self.document["variants"])

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over what can change a result; see `document.result_part`."""
        return canonical_json.digest(documents.result_part(self.document))

    @property
    def total_slots(self) -> int:
        replications: int = self.document["design"]["replications"]
        return len(self.variants) * len(self.tasks) * replications

    @property
    def required_names(self) -> tuple[str, ...]:
        """The `$NAME`s that --env, --env-file or the environment must set, sorted."""
        return tuple(self.document["environment"])

    @cached_property
    def images(self) -> tuple[str, ...]:
        """Every image that a trial runs in, sorted."""
        default = self.document["runtime"]["image"]
        return tuple(sorted({task.image or default for task in self.tasks}))

    def slots(self) -> Iterator[Slot]:
        """Yield the slots in schedule order; see `schedule.slots` for the orders."""
        task_ids = [task.task_id for task in self.tasks]
        return schedule.slots(self.document["design"], self.variants, task_ids)

    def frozen_tasks(self) -> Iterator[tuple[TaskRef, JsonObject]]:
        """Yield each task with its frozen row, read from the file again one at a time.

        Raises `ExperimentChanged` at a row that differs from what was resolved.
        """
        return self.dataset.rows()

    def freeze(self, store: ArtifactStore) -> None:
        """Put the staged files and the workspaces' tars into `store`.

        Raises `ExperimentChanged` if one differs from what was resolved.
        """
        for file in {file.sha256: file for phase in self.files.values() for file in phase}.values():
            if not store.contains(file.sha256):
                freeze_file(file, store)
        self.dataset.freeze(store)

    def missing_names(self, known: Collection[str]) -> list[Problem]:
        """Return a problem for each of `required_names` not in `known`, where it is first used."""
        problems: dict[str, Problem] = {}
        for phase, variant, path, name in _outside_names(self.document):
            if name not in known and name not in problems:
                problems[name] = self._missing_name(phase, variant, path, name, known)
        return list(problems.values())

    def _missing_name(
        self, phase: str, variant: str | None, path: FieldPath, name: str, known: Collection[str]
    ) -> Problem:
        by_variant = f"bound by variant {variant!r} nor " if variant else ""
        neither = "neither " if variant else "not "
        message = f"${name} is {neither}{by_variant}set by --env, --env-file or the environment"
        bound = {key for v in self.document["variants"] for key in v["bindings"]}
        close = near_names(name, sorted(bound | set(known)))
        hint = f"pass --env {name}=… or export {name}"
        if close:
            hint = f"did you mean ${close[0]}? otherwise {hint}"
        return self.authored.problem(documents.authored_path(phase, path), message, hint)

    def warnings(self) -> list[Problem]:
        """Return a warning for each word of a command that names a file missing from `files`."""
        problems: dict[FieldPath, Problem] = {}
        for phase, _, section in documents.phases(self.document):
            for index, word in enumerate(section["command"]):
                name = documents.literal_name(word)
                path = documents.authored_path(phase, ("command", index))
                if name and "." in name and (self.authored.folder / name).is_file():
                    message = f"{name!r} is a file beside the experiment, but it is not staged"
                    hint = f"add it to {'.'.join(map(str, PHASES[phase]))}.files"
                    problems[path] = self.authored.problem(path, message, hint)
        return list(problems.values())


def resolve(authored: Authored, overrides: Overrides | None = None) -> ResolvedExperiment:
    """Fill in every default, select variants and tasks, and digest every file. Write nothing.

    The tasks are read, checked and digested as a stream. Raises `InvalidInput` with every problem
    of the tasks, or if a filter matches nothing.
    """
    overrides = overrides or Overrides()
    _check_overrides(overrides)
    data = authored.data
    chosen = _chosen_variants(data, overrides.variants)
    files = _staged(authored)
    document = documents.base_sections(data)
    document["variants"] = documents.variant_sections(data, chosen, files)
    document["grader"] = documents.grader_section(data, files)
    commands = [(phase, section) for phase, _, section in documents.phases(document)]
    require_executable(authored, commands, files)
    selection = Selection(document["dataset"]["limit"], overrides.tasks, overrides.limit)
    path = authored.folder / document["dataset"]["path"]
    dataset = read_tasks(
        path,
        selection,
        default_image=document["runtime"]["image"],
        cluster=document["dataset"].get("cluster"),
    )
    document["dataset"] |= {
        "tasks": len(dataset.tasks),
        "digest": dataset.digest,
        "filters": {
            "tasks": list(overrides.tasks),
            "variants": list(overrides.variants),
            "limit": overrides.limit,
        },
    }
    if overrides.max_concurrency is not None:
        document["design"]["max_concurrency"] = overrides.max_concurrency
    document["environment"] = sorted({name for *_, name in _outside_names(document)})
    document["files"] = {phase: [f.as_json() for f in staged] for phase, staged in files.items()}
    return ResolvedExperiment(authored, document, dataset, files)


def _check_overrides(overrides: Overrides) -> None:
    problems = [
        Problem(option, f"found {value}; expected 1 or more")
        for option, value in (
            ("--limit", overrides.limit),
            ("--max-concurrency", overrides.max_concurrency),
        )
        if value is not None and value < 1
    ]
    if problems:
        raise InvalidInput("the options are not valid", problems)


def _chosen_variants(data: JsonObject, globs: tuple[str, ...]) -> list[str]:
    known = [variant["variant_id"] for _, variant in authored_variants(data)]
    problems = [
        Problem("--variant", f"{glob!r} matches no variant", hint=f"variants: {', '.join(known)}")
        for glob in globs
        if not any(fnmatchcase(name, glob) for name in known)
    ]
    if problems:
        raise InvalidInput("the selected variants do not exist", problems)
    return [n for n in known if not globs or any(fnmatchcase(n, glob) for glob in globs)]


def _staged(authored: Authored) -> dict[str, tuple[StagedFile, ...]]:
    files: dict[str, tuple[StagedFile, ...]] = {}
    problems: list[Problem] = []
    for phase, path in PHASES.items():
        entries = (lookup(authored.data, path) or {}).get("files", [])
        try:
            files[phase] = staged_files.stage_files(authored.folder, entries)
        except UnusablePath as refused:
            problems.append(authored.problem((*path, "files"), refused.message, refused.hint))
    if problems:
        raise InvalidInput(f"the files of {authored.path} cannot be staged", problems)
    return files


def require_executable(
    authored: Authored,
    commands: Iterable[tuple[str, JsonObject]],
    files: Mapping[str, tuple[StagedFile, ...]],
) -> None:
    """Raise `InvalidInput` if a command starts a staged file that is not executable."""
    problems: dict[FieldPath, Problem] = {}
    for phase, section in commands:
        path = documents.authored_path(phase, ("command", 0))
        for file in files[phase]:
            started = section["command"][0] == f"{documents.DEPS}/{phase}/{file.name}"
            if started and not file.executable:
                hint = f"chmod +x {file.source}, or start it with its interpreter"
                problems[path] = authored.problem(path, f"{file.name} is not executable", hint)
    if problems:
        raise InvalidInput(f"the commands of {authored.path} cannot start", list(problems.values()))


def _outside_names(document: JsonObject) -> Iterator[tuple[str, str | None, FieldPath, str]]:
    """Yield phase, variant, path and name of each `$NAME` that the environment must set."""
    for phase, variant, section in documents.phases(document):
        for path, text in phase_texts(section):
            for name in names(text):
                if not is_contract_name(name):
                    yield phase, variant, path, name


def freeze_file(file: StagedFile, store: ArtifactStore) -> None:
    """Put a staged file into `store`. Raises `ExperimentChanged` if it has changed since."""
    try:
        stored_digest, _ = store.put_file(file.source)
    except FileNotFoundError:
        stored_digest = "gone"
    if stored_digest != file.sha256:
        raise ExperimentChanged(
            f"{file.source} changed while it was being read",
            hint="do not change the experiment's files until the run has started; start it again",
        )
