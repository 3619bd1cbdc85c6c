"""Another grader for a run that is over: from an experiment file, or one script in its place."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from labledger.errors import InvalidInput, Problem
from labledger.experiment import document as documents
from labledger.experiment import staging
from labledger.experiment.authoring import load_experiment
from labledger.experiment.checks import PHASES, phase_texts
from labledger.experiment.findings import Refused
from labledger.experiment.resolve import freeze_file, require_executable
from labledger.experiment.staging import StagedFile
from labledger.records import JsonObject
from labledger.references import is_contract_name, names
from labledger.store import ArtifactStore

_EXPERIMENT = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class NewGrader:
    """A grader, resolved as far as a run's own is."""

    source: Path
    """The file that was named."""
    section: JsonObject
    """The grader of a resolved document."""
    files: tuple[JsonObject, ...]
    """All its staged files, as a resolved document lists them."""
    new_files: tuple[StagedFile, ...]
    """Those of them that have to be kept first."""
    evaluator: JsonObject | None = None
    """What says of itself who judges; None where that stays as it was."""
    text: str | None = None
    """The experiment that it was taken from."""

    @classmethod
    def load(cls, path: Path, document: JsonObject) -> Self:
        """The grader that `path` names for a run of a resolved document. Writes nothing.

        An experiment file (or its folder) means its `benchmark.grader`. Any other file takes the
        place of the run's own script, under that one's name; the script's other files and the
        command stay. Raises `InvalidInput`.
        """
        path = path / "experiment.yaml" if path.is_dir() else path
        if path.suffix in _EXPERIMENT:
            return cls._of_experiment(path)
        return cls._of_script(path, document)

    @classmethod
    def _of_experiment(cls, path: Path) -> Self:
        authored = load_experiment(path)
        place = (*PHASES["grader"], "files")
        try:
            entries = authored.data["benchmark"]["grader"].get("files", [])
            files = staging.stage(authored.folder, entries)
        except Refused as refused:
            problem = authored.problem(place, refused.message, refused.hint)
            raise InvalidInput(f"the grader of {path}", [problem]) from None
        section = documents.grader_section(authored.data, {"grader": files})
        require_executable(authored, [("grader", section)], {"grader": files})
        listed = tuple(file.as_json() for file in files)
        evaluator = documents.base(authored.data)["benchmark"]["evaluator"]
        return cls(path.absolute(), section, listed, files, evaluator, authored.text)

    @classmethod
    def _of_script(cls, path: Path, document: JsonObject) -> Self:
        known = {file["name"]: file for file in document["files"]["grader"]}
        replaced = _replaced(path, known, document["grader"]["command"])
        try:
            (found,) = staging.stage(path.parent, [path.name])
        except Refused as refused:
            problem = Problem(str(path), refused.message, hint=refused.hint)
            raise InvalidInput("the grader", [problem]) from None
        entry = found.as_json() | {"name": replaced}
        entry["executable"] = entry["executable"] or known[replaced]["executable"]
        files = tuple({**known, replaced: entry}.values())
        return cls(path.absolute(), document["grader"], files, (found,))

    @property
    def environment(self) -> list[str]:
        """The `$NAME`s that must be given from outside, sorted."""
        texts = (text for _, text in phase_texts(self.section))
        return sorted({n for text in texts for n in names(text) if not is_contract_name(n)})

    def judging(self, document: JsonObject) -> JsonObject:
        """The resolved document of a run, with this grader in the place of its own."""
        changed = copy.deepcopy(document)
        changed["grader"] = self.section
        changed["files"]["grader"] = list(self.files)
        changed["environment"] = self.environment
        if self.evaluator is not None:
            changed["benchmark"]["evaluator"] = self.evaluator
        return changed

    def freeze(self, store: ArtifactStore) -> None:
        """Put its files into `store`. Raises `ExperimentChanged` where one has changed since."""
        for file in self.new_files:
            if not store.has(file.sha256):
                freeze_file(file, store)


def _replaced(path: Path, known: Mapping[str, JsonObject], command: Sequence[str]) -> str:
    """Which of a run's grader files another one takes the place of."""
    called = [name for name in known if PurePosixPath(name).name == path.name]
    started = [name for name in known if f"{documents.DEPS}/grader/{name}" in command]
    for candidates in (called, started):
        if len(candidates) == 1:
            return candidates[0]
    listed = ", ".join(known) or "none"
    message = f"it is not clear which of the run's grader files it replaces ({listed})"
    hint = "name it as one of them, or give an experiment file with the new `benchmark.grader`"
    raise InvalidInput("the grader", [Problem(str(path), message, hint=hint)])
