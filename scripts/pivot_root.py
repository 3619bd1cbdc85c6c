"""Make a folder the root of this mount namespace, as `pivot_root NEW OLD` does.

The command itself is missing on some machines: Ubuntu 26.04 has no package with it.
"""

from __future__ import annotations

import ctypes
import os
import sys


def main(new_root: str, put_old: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.pivot_root(os.fsencode(new_root), os.fsencode(put_old)) != 0:
        sys.exit(f"pivot_root {new_root} {put_old}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
