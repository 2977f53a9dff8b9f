"""Clients that come at a rate, whatever becomes of those before them, and give up after a second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

PATIENCE_S = 1.0


@dataclass
class Tally:
    """The fates of the requests of one round."""

    sent: int = 0
    in_time_s: list[float] = field(default_factory=list)
    refused: int = 0
    given_up: int = 0
    important: int = 0
    important_in_time: int = 0

    @property
    def p99_ms(self) -> float | None:
        """The time of the slowest but one in a hundred of those that were served in time."""
        ordered = sorted(self.in_time_s)
        return ordered[int(len(ordered) * 0.99)] * 1000 if ordered else None


async def offer(port: int, rate: float, seconds: float) -> Tally:
    """Send `rate` requests a second; every tenth of them is important."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    began_s = loop.time()
    tasks: set[asyncio.Task[None]] = set()
    while (passed_s := loop.time() - began_s) < seconds:
        while tally.sent < passed_s * rate:
            tally.sent += 1
            tasks.add(asyncio.create_task(_one(port, tally, important=tally.sent % 10 == 0)))
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    return tally


async def _one(port: int, tally: Tally, *, important: bool) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    tally.important += important
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            field = b"x-important: 1\r\n" if important else b""
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + field + b"\r\n")
            status = (await reader.readline()).split(b" ")[1:2]
        if status == [b"200"]:
            tally.in_time_s.append(loop.time() - began_s)
            tally.important_in_time += important
        elif status == [b"503"]:
            tally.refused += 1
        else:
            tally.given_up += 1
    except (TimeoutError, OSError):
        tally.given_up += 1
    finally:
        if writer is not None:
            writer.close()
