"""What an endpoint charges, settles, refunds and strikes is carried out, whatever becomes of it meanwhile."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from slidegate import BanPolicy, Limiter, Quota, RateLimitMiddleware, Rule, charge, decision_of, settle, strike
from slidegate.limiter import refresh

from ..asgi import PEER, scope_of
from ..redis_servers import AT_REDIS, free_port, until
from ..remote_stores import SlowStore
from ..skips import needs_lmdb
from ..virtual_time import turns

BOUND_S = 60
LIMITS: dict[str, Any] = {"tokens": "1000/hour", "cents": Quota("1000/day")}
RULES = [Rule("*", LIMITS["tokens"], cost=100, name="tokens"), Rule("*", LIMITS["cents"], cost=100, name="cents")]

Work: TypeAlias = Callable[[Limiter, Request], Awaitable[Any]]


async def one_after_the_other(*works: Awaitable[Any]) -> None:
    for work in works:
        await work


async def in_the_background(spend: Callable[..., Awaitable[Any]], _: Limiter, request: Request) -> None:
    response = PlainTextResponse(background=BackgroundTask(spend, request, {"tokens": 7, "cents": 130}))
    await response(request.scope, _receive_nothing, _send_nothing)


async def _receive_nothing() -> Any:
    await anyio.sleep_forever()


async def _send_nothing(message: object) -> None:
    pass


WORKS: dict[str, tuple[Work, dict[str, Any]]] = {
    "settle more": (lambda _, request: settle(request, {"tokens": 120, "cents": 130}), {"tokens": 120, "cents": 130}),
    "settle less": (lambda _, request: settle(request, {"tokens": 7, "cents": 3}), {"tokens": 7, "cents": 3}),
    "settle both ways": (lambda _, request: settle(request, {"tokens": 7, "cents": 130}), {"tokens": 7, "cents": 130}),
    "settle twice": (
        lambda _, request: one_after_the_other(settle(request, 7, rule="tokens"), settle(request, 130, rule="cents")),
        {"tokens": 7, "cents": 130},
    ),
    "settle behind an answer": (partial(in_the_background, settle), {"tokens": 7, "cents": 130}),
    "charge behind an answer": (partial(in_the_background, charge), {"tokens": 107, "cents": 230}),
    "charge": (lambda _, request: charge(request, {"tokens": 7, "cents": 130}), {"tokens": 107, "cents": 230}),
    "refund": (lambda limiter, request: limiter.refund(decision_of(request)), {"tokens": 0, "cents": 0}),
    "charge of a limiter": (
        lambda limiter, _: limiter.charge(PEER, "9/hour", 5, rule="other"),
        {"tokens": 100, "cents": 100, "other": 5},
    ),
    "strike": (
        lambda _, request: one_after_the_other(strike(request), strike(request)),
        {"tokens": 100, "cents": 100, "banned": True},
    ),
}
"""What a request does before it ends, and what its client has spent then."""


async def spent(limiter: Limiter) -> dict[str, Any]:
    """Return what the client has spent, by rule, and whether it is banned."""
    view = await limiter.inspect(PEER, {**LIMITS, "other": "9/hour"})
    found = {window.rule: window.used for window in view.windows if window.used or window.rule in LIMITS}
    return found | ({"banned": True} if await limiter.banned(PEER) else {})


class Site:
    """A limited application whose endpoint works at its end, for which it `waits` first, as a stream does."""

    def __init__(self, limiter: Limiter, work: Work, *, waits: bool) -> None:
        self.limiter, self._work, self._waits = limiter, work, waits
        self.reached = anyio.Event()
        self.done: list[str] = []
        self._app = RateLimitMiddleware(self._endpoint, limiter=limiter, rules=RULES, bans=BanPolicy("2/hour"))

    async def _endpoint(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.set()
        try:
            if self._waits:
                await anyio.sleep_forever()
        finally:
            await self._work(self.limiter, Request(scope))
            self.done.append("worked")
        await anyio.sleep_forever()  # a cancellation during the work arrives here

    async def visit(self) -> None:
        await self._app(scope_of(), _receive_nothing, _send_nothing)


# -- ways to end a request ---------------------------------------------------------------------------------------------


async def by_a_scope(site: Site, late: int) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(site.visit)
        await site.reached.wait()
        for _ in range(late):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def by_its_task(site: Site, late: int) -> None:
    task = asyncio.create_task(site.visit())
    await site.reached.wait()
    await turns(late)
    task.cancel()
    await turns(1)
    task.cancel()  # once more, perhaps meanwhile
    await asyncio.wait([task])
    assert task.cancelled()


async def by_a_deadline(site: Site, late: int) -> None:
    async def expires(deadline: asyncio.Timeout) -> None:
        await site.reached.wait()
        await turns(late)
        deadline.reschedule(0)

    async def run() -> None:
        async with asyncio.timeout(None) as deadline:
            timer = asyncio.create_task(expires(deadline))
            await site.visit()
            await timer

    with pytest.raises(TimeoutError):
        await run()


ENDS = [by_a_scope, by_its_task, by_a_deadline]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_what_is_begun_at_the_end_of_a_request_is_carried_out(end: Any, work: str, url: str) -> None:
    do, expected = WORKS[work]
    async with asyncio.timeout(BOUND_S), Limiter.from_url(url, deadline="30s") as limiter:
        await limiter.hit("another", "5/hour")  # so that the store is open
        for number, waits in enumerate((True, False)):
            for late in range(3):
                site = Site(limiter, do, waits=waits)
                await end(site, late)
                assert site.done == ["worked"]
                assert await spent(limiter) == expected, (number, late)
                await limiter.reset(PEER)
                await limiter.unban(PEER)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_under_trio_it_is_carried_out_as_well(work: str, url: str, *, waits: bool) -> None:
    do, expected = WORKS[work]

    async def main() -> None:
        with anyio.fail_after(BOUND_S):
            async with Limiter.from_url(url) as limiter:
                site = Site(limiter, do, waits=waits)
                await by_a_scope(site, 0)
                assert site.done == ["worked"]
                assert await spent(limiter) == expected

    anyio.run(main, backend="trio")


async def test_a_cancellation_that_was_taken_back_meanwhile_arrives_nowhere() -> None:
    store = SlowStore()
    limiter = Limiter(store, deadline="30s")
    store.hangs = True
    asyncio.get_running_loop().call_later(0.05, store.goes_on.set)
    async with asyncio.timeout(0.01):
        await limiter.charge("everyone", "10000/hour", 9)
    await turns()
    assert (await limiter.peek("everyone", "10000/hour", 0)).states[0].used == 9


# -- a client that leaves a stream -------------------------------------------------------------------------------------


async def words(request: Request, *, settles: bool) -> AsyncIterator[str]:
    try:
        for _ in range(9):
            yield "word "
            await anyio.lowlevel.checkpoint()
    finally:
        if settles:
            await settle(request, 7, rule="tokens")


class Settled(StreamingResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await settle(Request(scope), 7, rule="tokens")


@pytest.mark.parametrize("reads", [0, 3, 99])
@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize(("where", "unsettled"), [("response", ()), ("generator", (0,))])
async def test_a_stream_settles_around_its_response_but_a_generator_only_if_it_has_started(
    where: str, unsettled: Sequence[int], version: str, reads: int
) -> None:
    """Starlette learns that a client has left from `receive`, and since version 2.4 of ASGI from an error of `send`."""
    left, sent = anyio.Event(), list[Message]()
    if not reads:
        left.set()

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        answer = Settled(words(Request(scope), settles=False))
        if where == "generator":
            answer = StreamingResponse(words(Request(scope), settles=True))
        await answer(scope, receive, send)

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if left.is_set() and version == "2.4":
            raise OSError("the client has left")
        await anyio.lowlevel.checkpoint()
        sent.append(message)
        if len(sent) == reads:
            left.set()

    limiter = Limiter()
    scope = scope_of() | {"asgi": {"version": "3.0", "spec_version": version}}
    with suppress(ClientDisconnect):
        await RateLimitMiddleware(endpoint, limiter=limiter, rules=RULES[:1])(scope, receive, send)
    gc.collect()
    await turns()
    assert (await spent(limiter))["tokens"] == (100 if reads in unsettled else 7)


@pytest.mark.parametrize("work", ["settle both ways", "settle more", "settle less", "charge"])
@pytest.mark.parametrize("kind", [AT_REDIS])
async def test_what_is_charged_and_refunded_together_is_one_call_of_redis(
    url: str, work: str, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "STALE_NS", 60 * 10**9)  # else a busy machine reads overrides in another call
    calls = list[int]()
    do, expected = WORKS[work]

    async def counted(limiter: Limiter, request: Request) -> None:
        before = server.calls()
        await do(limiter, request)
        calls.append(server.calls()["evalsha"] - before["evalsha"])

    async with Limiter.from_url(url, deadline="30s") as limiter:
        for _ in range(2):  # beside the first one the rules are published
            await by_a_scope(Site(limiter, counted, waits=True), 0)
            assert await spent(limiter) == expected
            await limiter.reset(PEER)
    assert calls[1] == 1


STREAMS = """
import asyncio, os
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import StreamingResponse
from starlette.routing import Route
from slidegate import Limiter, RateLimitMiddleware, Rule, settle
from tests.web.test_charges import RULES

async def stream(request):
    async def words():
        try:
            while True:
                yield "word "
                await asyncio.sleep(0.01)
        finally:
            await settle(request, 7, rule="tokens")
            await settle(request, 130, rule="cents")
    return StreamingResponse(words())

limiter = Limiter.from_url(os.environ["STORE"], deadline="10s")
app = Starlette(routes=[Route("/", stream)], middleware=[Middleware(RateLimitMiddleware, limiter=limiter, rules=RULES)])
"""


@pytest.mark.parametrize("kind", [pytest.param("lmdb", marks=needs_lmdb), AT_REDIS])
def test_a_server_that_ends_waits_for_what_its_requests_have_begun(url: str, tmp_path: Path) -> None:
    (tmp_path / "streams.py").write_text(STREAMS)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "streams:app", "--port", str(port), "--timeout-graceful-shutdown", "1"]
    variables = {**os.environ, "STORE": url, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            until(lambda: listens(port), "uvicorn listens")
            url_of_stream = f"http://127.0.0.1:{port}/"
            with suppress(httpx.TransportError), httpx.stream("GET", url_of_stream, timeout=BOUND_S) as answer:
                for number, _ in enumerate(answer.iter_raw()):
                    if number == 1:
                        running.send_signal(signal.SIGTERM)
            assert running.wait(BOUND_S) in (0, -signal.SIGTERM)
        finally:
            running.kill()
    assert asyncio.run(_spent_at(url)) == {"tokens": 7, "cents": 130}


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


async def _spent_at(url: str) -> dict[str, int]:
    async with Limiter.from_url(url) as limiter:
        return {window.rule: window.used for window in (await limiter.inspect("127.0.0.1", LIMITS)).windows}
