"""Load the grader of a regrading: from an experiment file, or a script that replaces the old one.

The result is resolved as far as a run's own grader is, and `apply_to` puts it into the document
of the run that is regraded. Only `freeze` writes anything. `runner.regrading` is the caller.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from labledger.errors import InvalidInput, Problem
from labledger.experiment import resolved_document as documents
from labledger.experiment.authored import load_experiment
from labledger.experiment.consistency_checks import PHASES, phase_texts
from labledger.experiment.inputs import staged_files
from labledger.experiment.inputs.field_problems import UnusablePath
from labledger.experiment.inputs.staged_files import StagedFile
from labledger.experiment.name_references import is_contract_name, names
from labledger.experiment.resolve import freeze_file, require_executable
from labledger.records import JsonObject
from labledger.storage.artifact_store import ArtifactStore

_EXPERIMENT = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class NewGrader:
    """A resolved grader for a regrading."""

    source: Path
    """The file that was given."""
    section: JsonObject
    """The `grader` section of a resolved document."""
    files: tuple[JsonObject, ...]
    """All its staged files, as a resolved document lists them."""
    new_files: tuple[StagedFile, ...]
    """Those of `files` that `freeze` must put into the artifact store."""
    evaluator: JsonObject | None = None
    """The experiment's `benchmark.evaluator`; None to leave the run's own."""
    text: str | None = None
    """The text of the experiment file that it was taken from, if any."""

    @classmethod
    def load(cls, path: Path, document: JsonObject) -> Self:
        """Return the grader at `path`, for a run with the resolved document `document`.

        An experiment file (or its folder) means its `benchmark.grader`. Any other file replaces
        the run's own grader script, under the name of that script; the grader's other files and
        its command stay. Writes nothing. Raises `InvalidInput`.
        """
        path = path / "experiment.yaml" if path.is_dir() else path
        if path.suffix in _EXPERIMENT:
            return cls._of_experiment(path)
        return cls._of_script(path, document)

    @classmethod
    def _of_experiment(cls, path: Path) -> Self:
        authored = load_experiment(path)
        files_path = (*PHASES["grader"], "files")
        try:
            entries = authored.data["benchmark"]["grader"].get("files", [])
            files = staged_files.stage_files(authored.folder, entries)
        except UnusablePath as refused:
            problem = authored.problem(files_path, refused.message, refused.hint)
            raise InvalidInput(f"the grader of {path}", [problem]) from None
        section = documents.grader_section(authored.data, {"grader": files})
        require_executable(authored, [("grader", section)], {"grader": files})
        listed = tuple(file.as_json() for file in files)
        evaluator = documents.base_sections(authored.data)["benchmark"]["evaluator"]
        return cls(path.absolute(), section, listed, files, evaluator, authored.text)

    @classmethod
    def _of_script(cls, path: Path, document: JsonObject) -> Self:
        known = {file["name"]: file for file in document["files"]["grader"]}
        replaced = _replaced_name(path, known, document["grader"]["command"])
        try:
            (script,) = staged_files.stage_files(path.parent, [path.name])
        except UnusablePath as refused:
            problem = Problem(str(path), refused.message, hint=refused.hint)
            raise InvalidInput("the grader", [problem]) from None
        entry = script.as_json() | {"name": replaced}
        entry["executable"] = entry["executable"] or known[replaced]["executable"]
        files = tuple({**known, replaced: entry}.values())
        return cls(path.absolute(), document["grader"], files, (script,))

    @property
    def environment(self) -> list[str]:
        """The `$NAME`s that the environment must set, sorted."""
        texts = (text for _, text in phase_texts(self.section))
        return sorted({n for text in texts for n in names(text) if not is_contract_name(n)})

    def apply_to(self, document: JsonObject) -> JsonObject:
        """Return a copy of a run's resolved document with this grader instead of its own."""
        changed = copy.deepcopy(document)
        changed["grader"] = self.section
        changed["files"]["grader"] = list(self.files)
        changed["environment"] = self.environment
        if self.evaluator is not None:
            changed["benchmark"]["evaluator"] = self.evaluator
        return changed

    def freeze(self, store: ArtifactStore) -> None:
        """Put its files into `store`. Raises `ExperimentChanged` if one has changed."""
        for file in self.new_files:
            if not store.contains(file.sha256):
                freeze_file(file, store)


def _replaced_name(path: Path, known: Mapping[str, JsonObject], command: Sequence[str]) -> str:
    """Return the name of the run's grader file that the script at `path` replaces."""
    same_name = [name for name in known if PurePosixPath(name).name == path.name]
    started = [name for name in known if f"{documents.DEPS}/grader/{name}" in command]
    for candidates in (same_name, started):
        if len(candidates) == 1:
            return candidates[0]
    listed = ", ".join(known) or "none"
    message = f"it is not clear which of the run's grader files it replaces ({listed})"
    hint = "give it the name of one of them, or pass an experiment file with `benchmark.grader`"
    raise InvalidInput("the grader", [Problem(str(path), message, hint=hint)])
