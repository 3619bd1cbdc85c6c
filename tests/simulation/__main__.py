"""`python -m simulation`: simulated worlds, from their seeds."""

from __future__ import annotations

import sys

sys.modules["pysqlite3"] = None

from simulation import primitives  # noqa: E402

if __name__ == "__main__":
    primitives.install()
    from simulation.command import main

    main()
