"""The prediction of a SWE-bench trial is the patch in the tar that its grader got."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from sample_trials import BUSYBOX, Trials

from labledger.benchmarks.swebench.judge import grade
from labledger.experiment.grading_settings import ResultSource
from labledger.files.untrusted_files import PREDICTION_CAP
from labledger.records.outcomes import Reason, SlotStatus
from labledger.trial.evidence.grading import GradedTrial, GradingOutcome
from labledger.trial.evidence.redaction import Redactor
from labledger.trial.output_folders import trial_outputs

PATCH = "diff --git a/x b/x\n"


def pieces_of_tar(*members: tuple[str, bytes, bytes], piece: int = 100) -> Iterable[bytes]:
    """Return a tar of names, kinds and contents in pieces that end anywhere."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "elsewhere"
            archive.addfile(member, io.BytesIO(content))
    whole = file.getvalue()
    return [whole[start : start + piece] for start in range(0, len(whole), piece)]


def predicted(tmp_path: Path, artifacts: Iterable[bytes] | None) -> GradingOutcome:
    """Return the outcome of a trial whose grader failed, so that no log is judged."""
    spec = Trials(tmp_path, {BUSYBOX: "sha256:0"}).spec()
    outcome = GradingOutcome(SlotStatus.GRADE_ERROR, Reason.GRADER_EXIT_NONZERO, "it failed")
    trial = GradedTrial(
        stamp=spec.stamp("2026-01-01T00:00:00.000Z"),
        benchmark=spec.plan.benchmark,
        bindings=spec.plan.bindings,
        source=ResultSource(source="swebench"),
        outputs=trial_outputs(spec),
        redactor=Redactor({}),
        artifacts=lambda: artifacts,
    )
    grade(trial, outcome)
    return outcome


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ([("swebench/model.patch", tarfile.REGTYPE, PATCH.encode())], PATCH),
        ([("swebench/model.patch", tarfile.REGTYPE, b"\xff\n")], "�\n"),
        ([("swebench/model.patch", tarfile.REGTYPE, b"")], ""),
        ([("swebench/model.patch", tarfile.SYMTYPE, b"")], None),
        ([("swebench/other", tarfile.REGTYPE, b"x" * 3000)], None),
        (None, None),
    ],
    ids=["patch", "not UTF-8", "empty", "link", "another file", "nothing"],
)
def test_the_patch_is_the_prediction(
    tmp_path: Path, members: list[tuple[str, bytes, bytes]] | None, value: str | None
) -> None:
    """A regular file of the patch's name is the prediction; without one its value is null."""
    outcome = predicted(tmp_path, None if members is None else pieces_of_tar(*members))
    assert outcome.prediction is not None
    assert outcome.prediction["prediction"]["value"] == value


def test_a_patch_that_is_too_large_is_no_prediction(tmp_path: Path) -> None:
    """It is not read."""
    content = b"x" * (PREDICTION_CAP + 1)
    tar = pieces_of_tar(("model.patch", tarfile.REGTYPE, content), piece=1 << 20)
    assert predicted(tmp_path, tar).prediction is None
