"""Names of files in tars and workspaces: which are safe to use below a folder, and what is above.

Names come from containers, tasks and imported ledgers. A rule about what may be written or packed
below a folder stands here once.
"""

from __future__ import annotations

from collections.abc import Iterator


def is_safe_name(name: str) -> bool:
    """Return True for a relative path without empty, `.` or `..` components."""
    return "\0" not in name and all(step not in {"", ".", ".."} for step in name.split("/"))


def parents(name: str) -> Iterator[str]:
    """Yield the folders above a name, the nearest first, without the top."""
    while name := name.rpartition("/")[0]:
        yield name


def link_stays_inside(name: str, target: str) -> bool:
    """Return True if a symbolic link cannot lead out of the top folder, through whatever it passes.

    Steps upwards are allowed only at the beginning, where they leave real folders if no name lies
    below a link. After a name, which may be a link, the same step could lead anywhere.
    """
    if not name or not target or target.startswith("/"):
        return False
    steps = [step for step in target.split("/") if step not in {"", "."}]
    upwards = next((i for i, step in enumerate(steps) if step != ".."), len(steps))
    return upwards <= name.count("/") and ".." not in steps[upwards:]
