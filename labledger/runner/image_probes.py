"""Asking an image whether it has what trials need, and remembering the images that have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from labledger import canonical, user_cache
from labledger.records import JsonObject
from labledger.trial.container import Engine

PROBE_LABEL = "org.labledger.probe"

_OF_ENGINE = ("ID", "ServerVersion", "DefaultRuntime", "SecurityOptions", "Driver", "Architecture")
"""What is known of an engine that an image's answer may depend on."""


@dataclass(frozen=True, slots=True)
class ImageProbes:
    """Runs short scripts in containers of images; one that had nothing to say is run once.

    An image is named by its id, which says all about it for ever; another engine, another version
    of it, another user or another script is asked anew.
    """

    engine: Engine
    engine_info: JsonObject
    """What the engine says of itself."""
    use_memory: bool = True
    """False where every image is to be asked, whatever it answered before."""
    oci_runtime: str | None = None
    """The OCI runtime of the containers; None is the engine's own choice."""

    @classmethod
    def of(
        cls, engine: Engine, info: JsonObject, document: JsonObject, *, use_memory: bool = True
    ) -> Self:
        """Probes as the trials of a resolved document will run."""
        return cls(engine, info, use_memory, document["runtime"].get("oci"))

    def ask(self, image: str, script: str, user: str | None = None) -> tuple[int, str]:
        """Return the exit status and the output of a script: 0 and "" where all is well.

        Raises what `Engine.run_probe` raises.
        """
        name = self._name(image, script, user)
        if self.use_memory and user_cache.read(name) is not None:
            return 0, ""
        status, output = self.engine.run_probe(
            image, script, {PROBE_LABEL: "1"}, user, self.oci_runtime
        )
        if (status, output) == (0, ""):
            user_cache.keep(name, b"")
        return status, output

    def _name(self, image: str, script: str, user: str | None) -> str:
        about_engine = [self.engine_info.get(name) for name in _OF_ENGINE]
        return f"image-{canonical.digest([about_engine, image, script, user, self.oci_runtime])}"
