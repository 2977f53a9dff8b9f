"""A round-robin reverse proxy for the plain processes, as nginx is in `compose.yaml`.

`UPSTREAMS` has the addresses of the hosts, separated by commas.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import cycle, islice

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

BOUND_S = 60
HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
"""Header fields that concern one connection and not the request (RFC 9110, section 7.6.1)."""


def make_app(settings: Mapping[str, str] = os.environ) -> Starlette:
    """Return the front."""
    hosts = settings["UPSTREAMS"].split(",")
    turns = cycle(hosts)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        async with httpx.AsyncClient(trust_env=False, timeout=BOUND_S) as client:
            yield {"client": client}

    async def pass_on(request: Request) -> Response:
        for host in islice(turns, len(hosts)):
            try:
                return await answer_of(host, request)
            except httpx.ConnectError:
                continue  # try the next host
        return Response("no host answers\n", status_code=502)

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", pass_on, methods=methods)], lifespan=lifespan)


async def answer_of(host: str, request: Request) -> Response:
    """Forward a request to a host and return its response.

    Raises:
        httpx.ConnectError: The host does not accept connections.
    """
    client: httpx.AsyncClient = request.state.client
    body = request.stream() if {"content-length", "transfer-encoding"} & {*request.headers} else None
    asked = client.build_request(
        request.method,
        f"{host}{request.url.path}?{request.url.query}",
        headers=[*passed_on(request.headers.items()), ("x-forwarded-for", chain(request))],
        content=body,
    )
    answer = await client.send(asked, stream=True)
    response = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
    response.raw_headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in passed_on(answer.headers.multi_items())
    ]
    return response


def passed_on(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the end-to-end header fields, without X-Forwarded-For, which the front sets itself."""
    return [(name, value) for name, value in fields if name.lower() not in HOP_BY_HOP | {"x-forwarded-for"}]


def chain(request: Request) -> str:
    """Return X-Forwarded-For: the value from the client, with the address of the client appended."""
    said = request.headers.getlist("x-forwarded-for")
    return ", ".join([*said, request.client.host if request.client else "unknown"])
