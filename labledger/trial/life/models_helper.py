"""The models helper: the container by which a trial's agent reaches the gateway.

It has the network that the container of the trial would have had, and that container joins it: at a
port of its loopback the agent finds a forwarder to the socket, which the helper alone has. When
`trial.sh` says that the agent has ended, the helper closes the port, so that nobody has to be there
to keep models from what the agent left.

A helper that died is not started again: it would have another network than the trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from labledger.engine import forwarder_program, relay
from labledger.engine.engine import Engine
from labledger.engine.engine_errors import ContainerFailed
from labledger.files.workspace_seed import OPEN_FILE
from labledger.records import JsonObject
from labledger.records.model_grants import SOCKET
from labledger.trial import contract
from labledger.trial.attempt_spec import AttemptSpec
from labledger.trial.life.helper_containers import Helper, HelperKind, program_words

_GATEWAY, _DOOR = "/gateway", "/door"
_FOLDER, _, _NAME = SOCKET.partition("/")


@dataclass(frozen=True, slots=True)
class ModelsHelper:
    """The models helper of an attempt."""

    name: str
    labels: Mapping[str, str]
    """Those of the attempt."""
    folder: Path
    """The trial's folder."""

    @classmethod
    def of(cls, spec: AttemptSpec) -> Self:
        """Return the helper of an attempt whose agent has models."""
        return cls(f"{spec.container_name}-models", spec.labels(), spec.folder)

    @property
    def _helper(self) -> Helper:
        return Helper(self.name, HelperKind.MODELS, self.labels)

    def prepare(self, folder: Path) -> None:
        """Make what it mounts in a new trial folder, in which `in` is."""
        (folder / _FOLDER).mkdir()
        (folder / _FOLDER).chmod(0o755)
        for name in (contract.AGENT_OVER_FILE, contract.MODELS_CLOSED_FILE):
            (folder / "in" / name).touch()
            (folder / "in" / name).chmod(OPEN_FILE)

    def provide(self, engine: Engine, image: str | None, network: JsonObject) -> None:
        """Make sure that it runs and listens. Can be repeated, until the trial has started.

        `image` is the id of its image, `network` the part of `HostConfig` that says in which
        network it is. Raises `ContainerFailed`, and `EngineUnavailable` if the image is gone.
        """
        config = self._helper.config(image)
        inputs = self.folder / "in"
        over, closed = (
            f"{_DOOR}/{name}" for name in (contract.AGENT_OVER_FILE, contract.MODELS_CLOSED_FILE)
        )
        config["Entrypoint"] = [
            *program_words(forwarder_program, relay),
            *(str(contract.MODELS_PORT), f"{_GATEWAY}/{_NAME}", over, closed),
        ]
        # The trial's container has the name of this one.
        config["Hostname"] = "trial"
        config["HostConfig"] |= network | {
            "Mounts": [
                contract.mount(self.folder / _FOLDER, _GATEWAY, read_only=True),
                contract.mount(inputs / contract.AGENT_OVER_FILE, over, read_only=True),
                contract.mount(inputs / contract.MODELS_CLOSED_FILE, closed),
            ]
        }
        self._helper.provide(engine, config)

    def mounts(self) -> list[JsonObject]:
        """Return the mounts of the trial's container by which `trial.sh` closes the port."""
        name = contract.AGENT_OVER_FILE
        return [contract.mount(self.folder / "in" / name, f"{contract.IN}/{name}")]

    @property
    def has_closed(self) -> bool:
        """Whether it has closed the port, because the agent has ended."""
        try:
            return (self.folder / "in" / contract.MODELS_CLOSED_FILE).stat().st_size > 0
        except OSError:
            return False

    def is_lost(self, engine: Engine) -> bool:
        """Return whether it has died before the agent had ended."""
        if self.has_closed:
            return False
        state = engine.inspect(self.name)
        is_running = state is not None and state.status in {"running", "paused"}
        # It may have closed the port just before.
        return not is_running and not self.has_closed

    def report(self, engine: Engine) -> JsonObject:
        """Return what is unusual about it, for the evidence."""
        try:
            replaced = sum(row.get("what") == "replaced" for row in self._helper.log(engine))
        except ContainerFailed as error:
            return {"problem": error.message}
        return {"forwarders_replaced": replaced} if replaced else {}
