"""What the user allows files of strangers to do: list, allow, revoke."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.errors import InvalidInput, Problem
from labledger.files import permissions
from labledger.files.lab_folder import LabFolder
from labledger.files.permissions import AllowedPermission, Permission, PermissionStore

if TYPE_CHECKING:
    from collections.abc import Sequence


def needed_permissions(subject: str | Path) -> tuple[Permission, ...]:
    """Return what a lab folder asks for that the user has not allowed.

    Nothing is allowed yet. A lab folder gets a mark, by which it is known once it is allowed.

    Args:
        subject: A lab folder.

    Returns:
        Each permission with a sentence for the user and a digest; none if nothing is needed.

    Raises:
        InvalidInput: There is nothing at `subject` that can ask for a permission.
        LabLedgerError: The stored permissions are refused: another user could write them. Or other
            users can change the lab folder.

    Example:
        >>> import labledger
        >>> [each.sentence for each in labledger.needed_permissions(".lab")]
        []
    """
    lab = LabFolder(Path(subject))
    if lab.ledger.exists() or lab.settings.exists():
        from labledger.execution.lab_receivers import permissions_of_lab

        return permissions_of_lab(lab)
    problem = Problem(str(subject), "is no lab folder")
    raise InvalidInput("what asks for permissions", [problem])


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
        problem = Problem(wrong[0], "is no digest of a permission; expected 64 hex digits")
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
