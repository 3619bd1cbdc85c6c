"""The command `allow`: permits actions of other people's files on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import confirm, out, out_json, say
from labledger.errors import Exit, InvalidInput, Problem
from labledger.text.words import counted

if TYPE_CHECKING:
    from labledger.results import Permission

_DIGITS = 64
"""The length of a digest in digits."""


def allow(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="An experiment, FORMAT:LOCATION, a run's id, a lab folder or a cluster file that "
            "needs permissions; or the digest of a permission."
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the permissions, and change nothing.")
    ] = False,
    revoke: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIGEST", help="Revoke a permission; its first 8 digits will do. Repeatable."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Show what other people's files would do on this machine, and allow it if you agree.

    A permission covers exactly what is shown. With --json, the command asks nothing: it prints the
    needed permissions, and grants them only with --yes.
    """
    if list_:
        _show_allowed(json=json)
    elif revoke:
        for permission in labledger.revoke_permissions(revoke):
            out(f"revoked {permission.digest[:12]}: {permission.sentence}")
    elif not what:
        raise InvalidInput("the command", [Problem("WHAT", "is missing", hint="or give --list")])
    else:
        digests = [word for word in what if len(word) == _DIGITS and not Path(word).exists()]
        subjects = [word for word in what if word not in digests]
        if json:
            _allow_as_json(subjects, digests, lab_dir, yes=yes)
        else:
            _allow(subjects, digests, lab_dir, yes=yes)


def _show_allowed(*, json: bool) -> None:
    allowed = labledger.allowed_permissions()
    if json:
        out_json([permission.as_json() for permission in allowed])
        return
    for permission in allowed:
        out(f"{permission.digest[:12]} {permission.allowed_at} {permission.sentence}")
    if not allowed:
        say("nothing is allowed")


def _needed(subjects: list[str], lab_dir: Path | None) -> list[Permission]:
    needed = (
        permission
        for subject in subjects
        for permission in labledger.needed_permissions(subject, lab_dir=lab_dir)
    )
    return list({permission.digest: permission for permission in needed}.values())


def _allow_as_json(
    subjects: list[str], digests: list[str], lab_dir: Path | None, *, yes: bool
) -> None:
    needed = _needed(subjects, lab_dir)
    out_json([permission.as_json() for permission in needed])
    if yes:
        labledger.allow(needed, digests)


def _allow(subjects: list[str], digests: list[str], lab_dir: Path | None, *, yes: bool) -> None:
    """Ask until no permission is needed: reading an allowed dataset may need further ones."""
    is_first = True
    while (needed := _needed(subjects, lab_dir)) or (is_first and digests):
        for permission in needed:
            out(f"{permission.where}: it would {permission.sentence}")
            out(f"  digest {permission.digest}")
        named = digests if is_first else []
        if not confirm(f"allow {counted(len(needed) + len(named), 'permission')}?", yes=yes):
            say("nothing was allowed" if is_first else "nothing more was allowed")
            raise typer.Exit(int(Exit.INCOMPLETE))
        labledger.allow(needed, named)
        is_first = False
    if is_first:
        say("nothing needs your permission")
    else:
        say("allowed; `labledger allow --list` lists all permissions, and --revoke revokes one")
