"""The stream of frames: server-sent events, in a bounded number, each ending with its session or after its time.

No thread and no background task: a stream is the task of its request. It wakes up twice a second to see whether the
server is about to stop, asks for a frame when one is due, and sees whether its session is still good.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .frames import WINDOWS, Frames, interval_s
from .stopping import server_is_stopping

MOST_STREAMS: Final = 32
"""Streams of one process at a time; a page that gets none asks every five seconds instead."""
LONGEST_S: Final = 60.0
"""How long a stream lasts: the browser opens the next one by itself, and a server that cannot say that it stops is held
up no longer than this."""
LOOK_S: Final = 0.5
RETRY_MS: Final = 1_000
"""How long a browser waits before it opens the next stream."""
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # A proxy that collects an answer before it sends it on would collect for ever.
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The world as a stream sees it; tests put their own in place.

    Attributes:
        now_s: A clock that never steps back, in seconds.
        sleep: Waits for so many seconds.
        stopping: Says whether the server is about to stop.
    """

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    stopping: Callable[[], bool] = server_is_stopping


class Live:
    """An ASGI application that streams frames.

    Args:
        frames: The frames, shared by all streams.
        still_valid: Says whether the session that a request came with is still good.
        most: The largest number of streams at a time.
        around: Clock, sleep and the state of the server.
    """

    def __init__(
        self,
        frames: Frames,
        still_valid: Callable[[Scope], Awaitable[bool]],
        most: int = MOST_STREAMS,
        around: Surroundings | None = None,
    ) -> None:
        self._frames = frames
        self._still_valid = still_valid
        self._most = most
        self._around = around or Surroundings()
        self.streams = 0
        """How many are open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream frames until the client, the session, the server or the time ends it; refuse one too many with 503."""
        window = asked_window(Request(scope))
        if window is None:
            await problem(422, f"window must be one of {', '.join(WINDOWS)}")(scope, receive, send)
        elif self.streams >= self._most:
            busy = problem(503, f"{self._most} pages are kept up to date already; ask for `now` from time to time")
            busy.headers["Retry-After"] = str(int(LONGEST_S))
            await busy(scope, receive, send)
        else:
            self.streams += 1
            try:
                await self._stream(scope, window, receive, send)
            finally:
                self.streams -= 1

    async def _stream(self, scope: Scope, window: str, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def until_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(until_gone)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._frame_after_frame(scope, window, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()

    async def _frame_after_frame(self, scope: Scope, window: str, send: Send) -> None:
        around = self._around
        start_s = around.now_s()
        due_s = start_s
        opening = f"retry: {RETRY_MS}\n\n"
        while around.now_s() - start_s < LONGEST_S and not around.stopping():
            if around.now_s() >= due_s:
                if not await self._still_valid(scope):
                    return
                event = f"{opening}event: frame\ndata: {await self._frames.latest(window)}\n\n"
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
                opening = ""
                due_s = around.now_s() + interval_s(window)
            await around.sleep(LOOK_S)


def asked_window(request: Request) -> str | None:
    """Return the window that a request asks for, five minutes if it names none, None if there is no such window."""
    window = request.query_params.get("window", "5m")
    return window if window in WINDOWS else None


def problem(status: int, detail: str) -> Response:
    """Return an answer that says what is wrong."""
    titles = {422: "Unprocessable Content", 503: "Service Unavailable"}
    body = {"type": "about:blank", "title": titles[status], "status": status, "detail": detail}
    return JSONResponse(body, status, media_type="application/problem+json")
