"""The check of images where no engine answers on the coordinator's machine: the hosts have them.

A run records the id of each image. Without an engine here the hosts say which one a name has there,
and a run is refused if they disagree. Used by the checks of hosts before a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from labledger.cluster import connect
from labledger.cluster.host_transport import ClusterConnection, FoundHost
from labledger.experiment.inputs.image_builds import find_build
from labledger.experiment.resolve import ResolvedExperiment
from labledger.maintenance.check_results import CheckResult, runs_in
from labledger.maintenance.image_checks.egress_checks import egress_image_ref, needs_egress_proxy
from labledger.text.phrases import counted

_SHORT = len("sha256:") + 12


def check_host_images(
    connection: ClusterConnection,
    hosts: Sequence[FoundHost],
    experiment: ResolvedExperiment,
    egress_image: str | None,
    *,
    pull: bool,
) -> tuple[list[CheckResult], dict[str, str]]:
    """Return a check for each image, and the ids of the images that trials run in, by name.

    With `pull`, one of the hosts pulls an image that none has; the others do before their first
    trial with it. `egress_image` is the image of egress proxies, None for the default one.
    """
    refs = list(experiment.images)
    if needs_egress_proxy(merged for _, merged in experiment.settings):
        refs.append(egress_image_ref(egress_image))
    found = connect.find_images(connection, hosts, refs, pull=pull)
    checks = [
        replace(
            _check(ref, found.ids[ref], found.problems.get(ref), len(hosts), experiment, pull=pull),
            concerns=runs_in(ref) if ref in experiment.images else None,
        )
        for ref in dict.fromkeys(refs)
    ]
    ids = {ref: min(ids.values()) for ref in experiment.images if (ids := found.ids[ref])}
    return checks, ids


def _check(
    ref: str,
    ids: Mapping[str, str],
    problem: str | None,
    host_count: int,
    experiment: ResolvedExperiment,
    *,
    pull: bool,
) -> CheckResult:
    by_id: dict[str, list[str]] = defaultdict(list)
    for host, image in sorted(ids.items()):
        by_id[image].append(host)
    if len(by_id) > 1:
        differing = "; ".join(f"{image} on {', '.join(on)}" for image, on in sorted(by_id.items()))
        return CheckResult(
            "image",
            f"{ref} is not the same image on all hosts: {differing}",
            ok=False,
            hint="pull the same one on each host, or name it by its digest (NAME@sha256:…)",
        )
    if by_id:
        (image,) = by_id
        on = f"{len(ids)} of {counted(host_count, 'host')}"
        return CheckResult("image", f"{ref} is {image[:_SHORT]} on {on}")
    build = find_build(experiment.plan.image_builds, ref)
    if build is not None:
        detail = f"no host has {ref}, and building it from {build.context} needs an engine here"
    elif problem is not None:
        detail = f"no host has {ref} or can pull it: {problem}"
    elif not pull:
        return CheckResult("image", f"no host has {ref}; `run` has one of them pull it")
    else:
        detail = f"no host has {ref}"
    hint = f"pull or load it on a host, or check the name {ref!r}"
    return CheckResult("image", detail, ok=False, hint=hint)
