"""Pass bytes between two connections, in programs of helper containers.

The text of this module is part of these programs, so it uses only the standard library.
"""

from __future__ import annotations

import asyncio

BUFFER = 64 << 10
_IDLE_TIMEOUT_S = 3600.0
_LINGER_S = 60.0
"""How long a client may keep sending after the server has ended its side, in seconds."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def relay_both(client: Streams, server: Streams) -> None:
    """Pass on the bytes of both sides until both have ended."""
    sending = asyncio.ensure_future(_relay(client[0], server[1]))
    try:
        await _relay(server[0], client[1])
        await asyncio.wait_for(sending, _LINGER_S)
    finally:
        sending.cancel()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what arrives until its end, and then pass the end on."""
    try:
        while True:
            data = await asyncio.wait_for(reader.read(BUFFER), _IDLE_TIMEOUT_S)
            if not data:
                break
            writer.write(data)
            await asyncio.wait_for(writer.drain(), _IDLE_TIMEOUT_S)
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()
