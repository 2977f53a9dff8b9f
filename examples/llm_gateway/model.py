"""Stands for somebody else's language model: an API that streams tokens over HTTP, and has a limit of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from slidegate import RateLimitMiddleware

LIMIT = "10/second"
"""The limit in its terms of use."""
OVERLOADED, BREAKS_OFF = "a question that overloads the model", "a question on which the model breaks off"
BREAKS_AT = 5

Pace = Callable[[int], Awaitable[None]]


async def at_once(number: int) -> None:
    """Let every token come at once."""


def make_model(pace: Pace = at_once) -> Starlette:
    """Return the model.

    Args:
        pace: Is asked before each token, counted from 0, and returns when the token may come.
    """

    async def complete(request: Request) -> Response:
        asked = await request.json()
        if asked["prompt"] == OVERLOADED:
            return PlainTextResponse("overloaded", 503, {"Retry-After": "1"})
        breaks = asked["prompt"] == BREAKS_OFF
        return StreamingResponse(words(asked["max_tokens"], breaks=breaks), media_type="text/event-stream")

    async def words(count: int, *, breaks: bool) -> AsyncIterator[str]:
        for number in range(count):
            if breaks and number == BREAKS_AT:
                return
            await pace(number)
            yield f"data: {json.dumps({'text': f'word-{number} '})}\n\n"
        yield "data: [DONE]\n\n"

    return Starlette(
        routes=[Route("/v1/complete", complete, methods=["POST"])],
        middleware=[Middleware(RateLimitMiddleware, limits=LIMIT)],
    )
