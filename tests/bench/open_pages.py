"""Ten open pages of a run, as a process. Each follows events and requests missing data.

`python -m bench.open_pages LINK RUN PAGES`: prints a line once all are open, then follows the run
until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress

import aiohttp

_NOW_S = 1.0


async def main(link: str, run_id: str, pages: int) -> None:
    base, _, token = link.partition("/?token=")
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        base, headers=headers, timeout=timeout, connector=connector
    ) as session:
        opened = [asyncio.Event() for _ in range(pages)]
        tasks = [asyncio.create_task(page(session, run_id, is_open)) for is_open in opened]
        for is_open in opened:
            await is_open.wait()
        print("open", flush=True)
        await asyncio.gather(*tasks)


async def page(session: aiohttp.ClientSession, run_id: str, opened: asyncio.Event) -> None:
    """Act like a page: follow the commits, and poll running trials once a second."""
    async with session.get(f"/runs/{run_id}?format=json") as answer:
        committed = (await answer.json())["next"]
    asker = asyncio.create_task(ask_now(session, run_id))
    try:
        async with session.get(f"/events?run={run_id}") as stream:
            opened.set()
            async for line in stream.content:
                if not line.startswith(b"data: "):
                    continue
                upto = json.loads(line[6:]).get("upto", committed)
                while committed < upto:
                    path = f"/runs/{run_id}/changes?after={committed}&limit=200"
                    async with session.get(path) as answer:
                        committed = (await answer.json())["next"]
    finally:
        asker.cancel()


async def ask_now(session: aiohttp.ClientSession, run_id: str) -> None:
    while True:
        async with session.get(f"/runs/{run_id}/now") as answer:
            await answer.json()
        await asyncio.sleep(_NOW_S)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
