"""The answer to Prometheus, over ASGI.

The metrics are read and written in a thread: with thousands of series that takes as long as hundreds of requests.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

_METHODS: Final = ("GET", "HEAD")
_FAST: Final = 1


class Scrape:
    """An ASGI application that shows the metrics of a registry.

    Args:
        registry: The registry.
        prepare: Called before the registry is read, in the same context.
    """

    def __init__(self, registry: CollectorRegistry, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        self._registry = registry
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            response = await self._answer(Request(scope))
            await response(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})

    async def _answer(self, request: Request) -> Response:
        if request.method not in _METHODS:
            return PlainTextResponse("Method Not Allowed", 405, {"Allow": ", ".join(_METHODS)})
        write, content_type = choose_encoder(request.headers.get("accept", ""))
        if self._prepare is not None:
            await self._prepare()
        body = await anyio.to_thread.run_sync(write, self._registry)
        headers = {"Content-Type": content_type, "Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = await anyio.to_thread.run_sync(gzip.compress, body, _FAST)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)
