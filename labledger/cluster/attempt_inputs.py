"""What an attempt needs on the host that it belongs to: artifacts by digest, and images."""

from __future__ import annotations

import re

from labledger.records.artifacts import digest_of
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.regrading.regraded_trial import RegradedTrial

_DIGEST = re.compile(r"[0-9a-f]{64}")


def input_digests(spec: AttemptSpec) -> frozenset[str]:
    """Return the digests of the artifacts that an attempt reads, beside the run's staged files."""
    task = spec.task
    digests = {files.tar for files in task.files or ()}
    if task.workspace is not None and task.workspace.tar is not None:
        digests.add(task.workspace.tar)
    if isinstance(spec.kind, RegradedTrial):
        trial = spec.kind.stored
        references = map(digest_of, trial.evidence["evidence"].values())
        digests |= {digest for digest in references if digest not in trial.contents}
    return frozenset(digest for digest in digests if _DIGEST.fullmatch(digest))


def needed_images(spec: AttemptSpec) -> dict[str, str]:
    """Return the ids of the images that an attempt runs in, by the names that they have."""
    needed = {spec.image_ref: spec.image_id}
    if spec.has_grader_container:
        needed[spec.grader_image_ref] = spec.grader_image_id
    if spec.uses_egress_proxy and spec.plan.egress_image is not None:
        needed[spec.plan.egress_image] = spec.plan.egress_image
    return needed
