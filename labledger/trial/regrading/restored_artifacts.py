"""Restore the artifacts that a separate grader got, so that another one gets exactly the same.

The stored tar may come from an imported ledger and is not trusted: its digest is checked, and its
names must be at paths that the grader declares. Used by `restored_inputs` and `regraded_trial`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from labledger.records.artifacts import digest_of
from labledger.trial import contract
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.evidence.declared_artifacts import outermost
from labledger.trial.regrading.stored_artifacts import StoredArtifacts
from labledger.trial.trial_kind import EvidenceIncomplete
from labledger.workspace import artifact_tars
from labledger.workspace.artifact_tars import ArtifactsRefused
from labledger.workspace.untrusted_files import MIB

_EVIDENCE = "artifacts"


def require_artifacts(spec: AttemptSpec, stored: StoredArtifacts) -> None:
    """Raise `EvidenceIncomplete` if the artifacts of a stored trial cannot be restored exactly."""
    declared = spec.settings.grading.artifacts or ()
    facts = stored.trial.evidence.get("ext", {}).get(_EVIDENCE)
    if not declared and facts is None:
        return
    if facts is None or _EVIDENCE not in stored.references:
        raise EvidenceIncomplete("no artifacts were taken from its agent's container")
    if stored.trial.extension("artifacts_with_secrets"):
        raise EvidenceIncomplete(f"its artifacts were not stored: {stored.problem(_EVIDENCE)}")
    hasher = hashlib.sha256()
    for chunk in artifact_chunks(stored) or ():
        hasher.update(chunk)
    if hasher.hexdigest() != digest_of(stored.references[_EVIDENCE]):
        raise EvidenceIncomplete("artifacts: its artifact is not what was stored")
    tops = [(artifact.to or artifact.path).strip("/") for artifact in declared]
    try:
        with stored.opened(_EVIDENCE) as file:
            for name in () if file is None else artifact_tars.safe_names(file):
                if not any(name == top or name.startswith(f"{top}/") for top in tops):
                    raise EvidenceIncomplete(f"the grader declares no artifact for {name!r}")
    except ArtifactsRefused as error:
        raise EvidenceIncomplete(f"its artifacts cannot be read: {error.message}") from None


def artifact_chunks(stored: StoredArtifacts) -> Iterator[bytes] | None:
    """Return the stored tar in pieces, None if there is none."""
    if _EVIDENCE not in stored.references:
        return None

    def chunks() -> Iterator[bytes]:
        with stored.opened(_EVIDENCE) as file:
            while file is not None and (chunk := file.read(MIB)):
                yield chunk

    return chunks()


def artifact_folders(stored: StoredArtifacts) -> tuple[str, ...]:
    """Return the folders of the grader's container that come from artifacts."""
    facts = stored.trial.evidence.get("ext", {}).get(_EVIDENCE) or ()
    folders = [str(each["to"]) for each in facts if each["kind"] == "folder"]
    return tuple(to for to in outermost(folders) if not to.startswith(f"{contract.ROOT}/"))
