"""Probes: short scripts run in containers of an image, to check whether it has what trials need.

A successful probe is recorded in the user's cache, under the ids of image and engine, so that the
next preflight need not repeat it. A failed one is always repeated. Used by preflight and regrading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labledger.docker.engine import Engine
from labledger.records import JsonObject, canonical_json
from labledger.storage import user_cache
from labledger.trial.contract import Labels

_ENGINE_PROPERTIES = (
    "ID",
    "ServerVersion",
    "DefaultRuntime",
    "SecurityOptions",
    "Driver",
    "CgroupDriver",
    "CgroupVersion",
    "Architecture",
)
"""Properties of an engine that the result of a probe may depend on."""


@dataclass(frozen=True, slots=True)
class ImageProbes:
    """Runs probes in containers of images. A successful probe is not repeated.

    An image is identified by its id, which determines its content. A probe is repeated for another
    engine, another version of it, another user or another script.
    """

    engine: Engine
    engine_info: JsonObject
    """The engine's description of itself."""
    use_cache: bool = True
    """False to run every probe, even if it succeeded before."""
    oci_runtime: str | None = None
    """The OCI runtime of the trials' containers; None for the engine's default."""

    def run_probe(
        self,
        image: str,
        script: str,
        user: str | None = None,
        host_config: JsonObject | None = None,
    ) -> tuple[int, str]:
        """Return the exit status and the output of a script: 0 and "" if it succeeded.

        Raises what `Engine.run_probe` raises.
        """
        key = self._cache_key(image, script, user, host_config)
        if self.use_cache and user_cache.read(key) is not None:
            return 0, ""
        status, output = self.engine.run_probe(
            image, script, {Labels.PROBE: "1"}, user, self.oci_runtime, host_config
        )
        if (status, output) == (0, ""):
            user_cache.store(key, b"")
        return status, output

    def _cache_key(
        self, image: str, script: str, user: str | None, host_config: JsonObject | None
    ) -> str:
        engine_properties = [self.engine_info.get(name) for name in _ENGINE_PROPERTIES]
        key_parts: list[Any] = [engine_properties, image, script, user, self.oci_runtime]
        if host_config is not None:
            key_parts.append(host_config)
        return f"image-{canonical_json.digest(key_parts)}"
