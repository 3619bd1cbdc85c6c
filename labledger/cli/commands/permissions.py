"""The command allow: what the user lets files of strangers do on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

import labledger
from labledger import Exit, InvalidInput, Problem
from labledger.cli import arguments
from labledger.cli.console import confirm, out, out_json, say
from labledger.text import counted


def allow(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="A lab folder that asks for permissions, or the digest of one."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show what is allowed, and change nothing.")
    ] = False,
    revoke: Annotated[
        list[str] | None,
        typer.Option(metavar="DIGEST", help="Revoke what was allowed; 8 digits do. Repeatable."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: arguments.Json = False,
) -> None:
    """Show what files of others ask for on this machine, and allow exactly that, after asking."""
    if list_:
        _show_allowed(json=json)
    elif revoke:
        for each in labledger.revoke_permissions(revoke):
            out(f"revoked {each.digest[:12]}: {each.sentence}")
    elif what:
        _allow(what, yes=yes, json=json)
    else:
        raise InvalidInput("the command", [Problem("WHAT", "is missing", hint="or give --list")])


def _show_allowed(*, json: bool) -> None:
    allowed = labledger.allowed_permissions()
    if json:
        out_json([each.as_json() for each in allowed])
        return
    for each in allowed:
        out(f"{each.digest[:12]} {each.allowed_at} {each.sentence}")
    if not allowed:
        say("nothing is allowed")


def _allow(what: list[str], *, yes: bool, json: bool) -> None:
    digests = [each for each in what if len(each) == 64 and "/" not in each]
    needed = [
        permission
        for each in what
        if each not in digests
        for permission in labledger.needed_permissions(each)
    ]
    if json:
        out_json([each.as_json() for each in needed])
    else:
        for each in needed:
            out(f"{each.where}: {each.sentence}")
            out(f"  digest {each.digest}")
    if not needed and not digests:
        say("nothing needs your permission")
        return
    if not confirm(f"allow {counted(len(needed) + len(digests), 'permission')}?", yes=yes):
        say("nothing was allowed")
        raise typer.Exit(int(Exit.INCOMPLETE))
    labledger.allow(needed, digests)
    say("allowed; `labledger allow --list` shows what is, and --revoke takes it back")
