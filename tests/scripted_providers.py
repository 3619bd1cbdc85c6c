"""A scripted provider that a test serves on loopback, in a thread of its own.

It is the real server over a real socket, for clients in this process and in others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labledger.gateway.scripted.provider import ScriptedProvider, serving
from labledger.gateway.scripted.script import parse_script


class ServedProvider:
    """A provider that listens on `url`."""

    def __init__(self, provider: ScriptedProvider, port: int) -> None:
        self._provider = provider
        self.url = f"http://127.0.0.1:{port}"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What it received, in order."""
        return self._provider.requests


@contextmanager
def scripted_provider(script: dict[str, Any]) -> Iterator[ServedProvider]:
    """Yield a provider that answers by a script while the block runs."""
    provider = ScriptedProvider(parse_script({"version": 1, **script}))
    ports: list[int] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with serving(provider) as port:
            ports.append(port)
            started.set()
            await ended.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    assert ports, "the provider did not start"
    try:
        yield ServedProvider(provider, ports[0])
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
