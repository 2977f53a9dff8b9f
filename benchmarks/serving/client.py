"""A client that sends requests over some connections as fast as they are answered, and reports as wrk does.

It stands in where wrk is not installed. It reads no more of an answer than it has to: the status and the length.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from typing import Final, cast
from urllib.parse import urlsplit

LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One connection with one request under way.

    Args:
        request: The bytes of a request.
        until_s: When to stop, by `time.perf_counter`.
    """

    def __init__(self, request: bytes, until_s: float) -> None:
        self.answers = 0
        self.others = 0
        self.closed = asyncio.get_running_loop().create_future()
        self._request, self._until_s = request, until_s
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop does not derive from it
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, end, body = self._seen.partition(b"\r\n\r\n")
        length = LENGTH.search(head + b"\r\n")
        if not end or length is None or len(body) < int(length[1]):
            return
        self.answers += 1
        self.others += head[9:10] not in (b"2", b"3")
        self._seen = b""
        if time.perf_counter() < self._until_s:
            self._transport.write(self._request)
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", type=int, default=32, help="connections")
    parser.add_argument("-d", type=float, default=1.0, help="seconds")
    parser.add_argument("url")
    options = parser.parse_args()
    address = urlsplit(options.url)
    request = f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    started_s = time.perf_counter()
    opened = [
        await asyncio.get_running_loop().create_connection(
            lambda: Connection(request, started_s + options.d), address.hostname, address.port
        )
        for _ in range(options.c)
    ]
    connections = [connection for _, connection in opened]
    async with asyncio.timeout(options.d + 10):
        await asyncio.gather(*(connection.closed for connection in connections))
    taken_s = time.perf_counter() - started_s
    answers = sum(connection.answers for connection in connections)
    print(f"  {answers} requests in {taken_s:.2f}s")
    if others := sum(connection.others for connection in connections):
        print(f"  Non-2xx or 3xx responses: {others}")
    print(f"Requests/sec: {answers / taken_s:.2f}")


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
