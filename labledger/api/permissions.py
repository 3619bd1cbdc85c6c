"""What the user allows files of strangers to do: list, allow, revoke."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.errors import InvalidInput, PermissionNeeded, Problem
from labledger.files import permissions
from labledger.files.lab_folder import LabFolder
from labledger.files.permissions import AllowedPermission, Permission, PermissionStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labledger.experiment.plan import ExperimentPlan


def needed_permissions(
    subject: str | Path, *, lab_dir: str | Path | None = None
) -> tuple[Permission, ...]:
    """Return what an experiment, run, lab folder or cluster file asks for and is not allowed.

    Nothing is run or sent. An experiment's tasks are read only where that is allowed: when its
    dataset has been allowed, the tasks may ask for more. A lab folder gets a mark, by which it is
    known once it is allowed.

    Args:
        subject: An experiment as for `run`, a lab folder, a cluster file, or the id of a run of the
            ledger, such as one that was imported.
        lab_dir: The lab folder of the run; by default as for a run.

    Returns:
        Each permission with a sentence for the user and a digest; none if nothing is needed.

    Raises:
        InvalidInput: The experiment is not valid.
        RunNotFound: There is neither such a file nor such a run.
        LabLedgerError: The stored permissions are refused: another user could write them. Or other
            users can change the lab folder.

    Example:
        >>> import labledger
        >>> [each.where for each in labledger.needed_permissions("demo")]
        ['provider team']
    """
    path = Path(subject)
    if _is_lab(path):
        from labledger.execution.lab_receivers import permissions_of_lab

        return permissions_of_lab(LabFolder(path))
    if (asked := _asked_by_cluster_file(path)) is not None:
        return permissions.missing(asked)
    from labledger.benchmarks.formats import parse_reference

    if path.exists() or parse_reference(str(subject)) is not None:
        return _needed_by_experiment(subject)
    from labledger.experiment.plan import ExperimentPlan
    from labledger.ledger.reader import LedgerReader

    ledger = LabFolder.find(lab_dir).ledger
    if not ledger.exists():
        problem = Problem(str(subject), "there is no such file, and no ledger with such a run")
        raise InvalidInput("what asks for permissions", [problem])
    with LedgerReader.open(ledger) as reader:
        run = reader.run(str(subject))
    return permissions.missing(_asked_of_models(ExperimentPlan.of_document(run.resolved)))


def _is_lab(path: Path) -> bool:
    lab = LabFolder(path)
    return path.is_dir() and (lab.ledger.exists() or lab.settings.exists())


def _asked_by_cluster_file(path: Path) -> tuple[Permission, ...] | None:
    """Return what a cluster file asks for; None if the path is not one."""
    if not path.is_file():
        return None
    from labledger.hosts.cluster_file import Cluster

    try:
        return Cluster.read(str(path), insecure=True).permissions
    except InvalidInput:
        return None


def _needed_by_experiment(subject: str | Path) -> tuple[Permission, ...]:
    from labledger.api.experiments import plan_run

    try:
        plan = plan_run(subject)._experiment.plan
    except PermissionNeeded as error:
        return error.needed
    return permissions.missing(_asked_of_models(plan))


def _asked_of_models(plan: ExperimentPlan) -> tuple[Permission, ...]:
    from labledger.execution.agent_needs import models_of, providers_of
    from labledger.gateway.provider_permissions import permissions_of

    of_models = permissions_of(providers_of(models_of(plan)))
    return (*of_models, *plan.agent_permissions)


def allow(needed: Iterable[Permission] = (), digests: Iterable[str] = ()) -> None:
    """Allow permissions for this user, until they are revoked.

    Args:
        needed: Permissions as `needed_permissions` returned them.
        digests: Digests of permissions, as messages name them.

    Raises:
        InvalidInput: A digest has not 64 digits.
        LabLedgerError: The user's settings cannot be written, or are refused.

    Example:
        >>> import labledger
        >>> labledger.allow(labledger.needed_permissions(".lab"))
    """
    named = tuple(digests)
    wrong = [each for each in named if not permissions.is_digest(each)]
    if wrong:
        problem = Problem(wrong[0], "is not a digest of a permission; expected 64 hex digits")
        raise InvalidInput("the permissions given", [problem])
    PermissionStore.of_user().add(needed, named)


def allowed_permissions() -> tuple[AllowedPermission, ...]:
    """Return what this user has allowed, in the order of time.

    Raises:
        LabLedgerError: The stored permissions are refused: another user could write them.

    Example:
        >>> import labledger
        >>> [each.digest[:12] for each in labledger.allowed_permissions()]
        ['3f1c0d9a57be']
    """
    allowed = PermissionStore.of_user().read().values()
    return tuple(sorted(allowed, key=lambda each: (each.allowed_at, each.digest)))


def revoke_permissions(digests: Sequence[str]) -> tuple[AllowedPermission, ...]:
    """Revoke permissions of this user.

    Args:
        digests: Their digests, or the first 8 digits or more.

    Returns:
        What was revoked.

    Raises:
        InvalidInput: A digest is unknown, or begins several; nothing is revoked then.
        LabLedgerError: The stored permissions are refused, or cannot be written.

    Example:
        >>> import labledger
        >>> [each.sentence for each in labledger.revoke_permissions(["3f1c0d9a57be"])]
        ['run the command `pass show team`, and send what it prints to https://models.example.com']
    """
    return PermissionStore.of_user().remove(digests)
