"""How many GPUs the engine of a host offers to containers, as far as can be found out.

The engine lists them if it knows them by CDI specifications; else NVIDIA's driver on this machine
has a folder for each. Whoever starts the worker can state the number instead, for other vendors or
an engine elsewhere. Used by the host's service.
"""

from __future__ import annotations

import re
from pathlib import Path

from labledger.records import JsonObject

_DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
_CDI_DEVICE = re.compile(r"nvidia\.com/gpu=\d+")
"""A GPU by its number. The same ones are also listed by other names, and all by `=all`."""


def count_gpus(engine_info: JsonObject, driver_folder: Path = _DRIVER_FOLDER) -> int | None:
    """Return the number of GPUs; None if the engine has GPUs, and it is not known how many."""
    devices = engine_info.get("DiscoveredDevices") or []
    listed = {str(device.get("ID")) for device in devices if isinstance(device, dict)}
    numbered = sum(_CDI_DEVICE.fullmatch(name) is not None for name in listed)
    if numbered:
        return numbered
    try:
        of_driver = sum(1 for _ in driver_folder.iterdir())
    except OSError:
        of_driver = 0
    has_runtime = "nvidia" in (engine_info.get("Runtimes") or {})
    return None if has_runtime and not of_driver else of_driver
