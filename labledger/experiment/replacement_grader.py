"""Load the grader of a regrading: from an experiment file, or a script that replaces the old one.

The grader is resolved like that of a new run, and `regrading_document` puts it into the document of
the run that is regraded. Only `freeze` writes anything.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Self

from labledger.errors import InvalidInput, Problem
from labledger.experiment import staged_files
from labledger.experiment.consistency_checks import PHASES
from labledger.experiment.experiment_file import load_experiment
from labledger.experiment.field_problems import UnusablePath
from labledger.experiment.plan import ExperimentPlan
from labledger.experiment.plan_sections import Benchmark, GraderPlan, NamedPhase, Regrades
from labledger.experiment.settings.phase_commands import DEPS, grader_plan, require_executable
from labledger.experiment.settings.trial_settings import names_of_all_phases
from labledger.experiment.staged_files import StagedFile
from labledger.files.artifact_store import ArtifactStore
from labledger.records import JsonObject

_EXPERIMENT_SUFFIXES = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class NewGrader:
    """A resolved grader for a regrading."""

    source: Path
    """The file that was given."""
    plan: GraderPlan
    files: tuple[StagedFile, ...]
    """All its staged files; those without a `source` are in the artifact store."""
    evaluator: JsonObject | None = None
    """The experiment's `benchmark.evaluator`; None for a script: the run's own evaluator stays."""
    text: str | None = None
    """The text of the experiment file that defines it, if any."""

    @classmethod
    def load(cls, path: Path, root: ExperimentPlan) -> Self:
        """Return the grader at `path`, for regrading a run with the plan `root`.

        An experiment file (or its folder) means its `benchmark.grader`. Any other file replaces
        the run's own grader script, under the name of that script; the grader's other files and
        its command stay. Writes nothing. Raises `InvalidInput`.
        """
        path = path / "experiment.yaml" if path.is_dir() else path
        if path.suffix in _EXPERIMENT_SUFFIXES:
            return cls._of_experiment(path)
        return cls._of_script(path, root)

    @classmethod
    def _of_experiment(cls, path: Path) -> Self:
        authored = load_experiment(path)
        files_path = (*PHASES["grader"], "files")
        try:
            entries = authored.data["benchmark"]["grader"].get("files", [])
            files = staged_files.stage_files(authored.folder, entries)
        except UnusablePath as error:
            problem = authored.problem(files_path, error.message, error.hint)
            raise InvalidInput(f"the grader of {path}", [problem]) from None
        plan = grader_plan(authored.data, {"grader": files})
        require_executable(authored, [NamedPhase("grader", plan)], {"grader": files})
        evaluator = Benchmark.of_authored(authored.data["benchmark"], split_id="").evaluator
        return cls(path.absolute(), plan, files, evaluator, authored.text)

    @classmethod
    def _of_script(cls, path: Path, root: ExperimentPlan) -> Self:
        run_files = {file.name: file for file in root.files["grader"]}
        replaced = _replaced_name(path, run_files, root.grader.command)
        try:
            (script,) = staged_files.stage_files(path.parent, [path.name])
        except UnusablePath as error:
            problem = Problem(str(path), error.message, hint=error.hint)
            raise InvalidInput("the grader", [problem]) from None
        executable = script.executable or run_files[replaced].executable
        new = replace(script, name=replaced, executable=executable)
        return cls(path.absolute(), root.grader, tuple({**run_files, replaced: new}.values()))

    @property
    def environment(self) -> list[str]:
        """The `$NAME`s that the environment must set, sorted."""
        return sorted({name for _, name in self.plan.outside_names()})

    def regrading_document(
        self, root: JsonObject, run_id: str, generation: int, head: str
    ) -> JsonObject:
        """Return the document of a regrading, from that of the run `run_id` that it regrades.

        Everything but the grader stays as it is stored, whichever version wrote it. `head` is the
        digest of the run's last commit.
        """
        document = copy.deepcopy(root)
        document["files"]["grader"] = [file.as_json() for file in self.files]
        names = names_of_all_phases(ExperimentPlan.of_document(root))
        document["environment"] = sorted(names.union(self.environment))
        if self.evaluator is not None:
            document["grader"] = self.plan.as_json()
            document["benchmark"]["evaluator"] = self.evaluator
        digest = ExperimentPlan.of_document(document).grader_identity.digest
        document["regrades"] = Regrades(run_id, generation, digest, head).as_json()
        return document

    def freeze(self, store: ArtifactStore) -> None:
        """Put the grader's files into `store`. Raises `ExperimentChanged` if one has changed."""
        for file in self.files:
            file.freeze(store)


def _replaced_name(path: Path, run_files: Mapping[str, StagedFile], command: Sequence[str]) -> str:
    """Return the name of the run's grader file that the script at `path` replaces."""
    same_name = [name for name in run_files if PurePosixPath(name).name == path.name]
    in_command = [name for name in run_files if f"{DEPS}/grader/{name}" in command]
    for candidates in (same_name, in_command):
        if len(candidates) == 1:
            return candidates[0]
    listed = ", ".join(run_files) or "none"
    message = f"it is not clear which of the run's grader files it replaces ({listed})"
    hint = "give it the name of one of them, or pass an experiment file with `benchmark.grader`"
    raise InvalidInput("the grader", [Problem(str(path), message, hint=hint)])
