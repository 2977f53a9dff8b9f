"""Who keeps abusing is shut out, by what they do; and whoever is refused is told when it is let in again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI, WebSocket
from hypothesis import given, note
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule, header, strike
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import PEER, Answer, call, page, scope_of, send_scope


class Site:
    """An application that answers with the status that the path names, behind a middleware on a clock of its own."""

    def __init__(self, app: ASGIApp | None = None, **options: Any) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.heard = RecordingObserver(without=["refused"])
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        self.calls: Counter[str] = Counter()
        self.middleware = RateLimitMiddleware(app or self.answer, limiter=self.limiter, **options)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls[scope["path"]] += 1
        name = scope["path"].rpartition("/")[2]
        await PlainTextResponse("x", int(name) if name.isdigit() else 200)(scope, receive, send)

    async def ask(self, path: str = "/", **more: Any) -> Answer:
        return await send_scope(self.middleware, scope_of(path, **more))

    async def status(self, path: str = "/", **more: Any) -> int:
        return (await self.ask(path, **more)).status

    async def banned(self) -> dict[str, int]:
        return {ban.key: ban.level async for ban in self.limiter.bans()}


def policy(after: str = "3/10m", duration: str = "1h", **more: Any) -> BanPolicy:
    return BanPolicy(after, duration, **more)


async def test_refusals_of_a_middleware_and_of_limits_within_are_no_statuses_of_the_application() -> None:
    inner = Starlette(
        routes=[
            Mount(
                "/inner",
                app=Starlette(routes=[Route("/404", lambda _: PlainTextResponse("", 404))]),
                middleware=[Middleware(RateLimitMiddleware, limits="2/day")],
            ),
            Route("/limited", RateLimit("1/day")(lambda request: PlainTextResponse("ok"))),
        ]
    )
    site = Site(inner, rules=[Rule("/first", "1/day")], bans=policy("4/10m", signals={429: 1, 403: 1, 404: 1}))
    for path in ("/first", "/limited"):  # their 404 and their 200 first, then 429s of each kind of middleware
        assert {await site.status(path) for _ in range(9)} >= {429}
    assert await site.banned() == {}
    assert await site.status("/inner/404") == 404  # the second of its own: one was at /first
    assert [await site.status("/nowhere") for _ in range(3)] == [404, 404, 403]


async def test_what_the_rules_of_one_middleware_exempt_its_policies_never_strike_for() -> None:
    async def struck(request: Request) -> Response:
        return PlainTextResponse(str(await strike(request, "ban")))

    below = Starlette(
        routes=[Route("/health", struck), Route("/x", lambda _: PlainTextResponse("", 404))],
        middleware=[Middleware(RateLimitMiddleware, rules=[Rule("/x", "1/day")])],
    )
    limited = Route("/limited", RateLimit("1/day")(page))
    inner = Starlette(routes=[limited, Mount("/hooks", app=below), Mount("/other", app=below)])
    exempt = [Rule(path, exempt=True) for path in ("/limited", "/hooks/{rest:path}", "/health")]
    site = Site(inner, rules=exempt, bans=policy("1/10m", signals={"refused": 1, 404: 1}))
    for path in ("/limited", "/hooks/x"):
        assert [await site.status(path) for _ in range(3)][1:] == [429, 429]
    assert (await site.ask("/hooks/health")).body == b"None"
    assert await site.banned() == {}
    assert (await site.ask("/other/health")).body != b"None", "a rule of the outer one means the path that it sees"


async def test_an_exception_of_the_application_is_the_500_that_the_server_makes_of_it() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/late":
            await PlainTextResponse("x")(scope, receive, send)
        raise ClientDisconnect if scope["path"] == "/left" else RuntimeError("no")

    site = Site(broken, rules=[], bans=policy(signals={"5xx": 1}))
    for path, error in (("/late", RuntimeError), ("/left", ClientDisconnect)):
        for _ in range(5):
            with pytest.raises(error):
                await site.ask(path)
    assert await site.banned() == {}
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await site.ask("/")
    assert await site.status("/") == 403


async def test_responses_that_were_on_their_way_when_the_ban_began_change_nothing() -> None:
    go = anyio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await PlainTextResponse("", 404)(scope, receive, send)

    site = Site(slow, rules=[], bans=policy("5/10m", signals={404: 1}))
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(site.status)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert site.heard.kinds == ["banned"]
    site.clock.advance("1h")
    assert await site.status() == 404  # no strike is left over


# -- a refusal whose strike bans says when the client is let in again --------------------------------------------------

DENIAL = {"websocket.http.response": {}}


class LimitedSite:
    def __init__(self, limits: str, policies: list[BanPolicy], at: str, **options: Any) -> None:
        self.clock, self.heard = FakeClock(), RecordingObserver()
        limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        app, limit = FastAPI(), RateLimit(limits)
        dependencies = [Depends(limit)] if at == "dependency" else []
        decorate: Callable[[Any], Any] = limit if at == "decorator" else lambda endpoint: endpoint

        @app.get("/", dependencies=dependencies)
        @decorate
        async def page() -> str:
            return "page"

        @app.websocket("/", dependencies=dependencies)
        @decorate
        async def chat(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.close()

        rules = [Rule("*", limits)] if at in ("rule", "inner") else []
        self.app: Any = RateLimitMiddleware(app, limiter=limiter, rules=rules, bans=policies, **options)
        if at == "inner":
            inner = RateLimitMiddleware(app, limiter=limiter, rules=rules)
            self.app = RateLimitMiddleware(inner, limiter=limiter, rules=[], bans=policies, **options)

    async def ask(self, kind: str = "http") -> Answer:
        more: dict[str, Any] = {"extensions": DENIAL} if kind == "websocket" else {}
        return await send_scope(self.app, scope_of("/", type=kind, headers={"X-API-Key": "k1"}, **more))


PLACES = st.sampled_from(["rule", "inner", "dependency", "decorator"])
KINDS = st.sampled_from(["http", "websocket"])
LIMITS = st.builds("{}/{}s".format, st.integers(1, 4), st.sampled_from([2, 5, 60]))
BANS = st.builds(
    lambda strikes, length, by_key: BanPolicy(
        f"{strikes}/10m", f"{length}s", factor=1, key=header("X-API-Key") if by_key else None
    ),
    st.integers(1, 4),
    st.sampled_from([1, 3, 30, 3600]),
    st.booleans(),
)


@given(LIMITS, BANS, PLACES, KINDS, st.lists(st.integers(0, 3), max_size=12))
async def test_a_limits_refusal_says_when_the_client_is_let_in_again_also_if_its_strike_bans(
    limits: str, policy: BanPolicy, at: str, kind: str, waits: list[int]
) -> None:
    note(f"{limits} {policy} {policy.key} {at} {kind} {waits}")

    async def played(*then_s: int) -> Any:
        """Return the last answer and its events, or, so much later, whether another request passes."""
        site = LimitedSite(limits, [policy], at)
        answer = await site.ask(kind)
        for wait_s in (*waits, *then_s):
            site.clock.advance(f"{wait_s}s") if wait_s else None
            site.heard.events.clear()
            answer = await site.ask(kind)
        first = answer.messages[0]
        passes = first["type"] == "websocket.accept" or first.get("status") == 200
        return passes if then_s else (passes, answer, site.heard.events)

    passes, answer, events = await played()
    if passes:
        return
    retry_s = int(answer.headers["retry-after"])
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.details["retry_after_s"] == retry_s
    assert not await played(retry_s - 1)
    if refused.details["reason"] == "limited":  # a banned client is told of the ban alone
        assert await played(retry_s)


async def test_a_refusal_for_lack_of_a_permit_whose_strike_bans_says_when_the_ban_ends() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app: Any = None

    async def page(scope: Any, receive: Any, send: Any) -> None:
        answers.append(await call(app))

    answers: list[Answer] = []
    policy = BanPolicy("1/10m", "1h")
    app = RateLimitMiddleware(page, limiter=limiter, rules=[Rule("*", concurrency=1)], bans=policy)
    await app(scope_of(), None, None)
    assert (answers[0].status, answers[0].headers["retry-after"]) == (429, "3600")


async def test_a_key_of_a_client_on_the_allowlist_is_not_banned_for_a_status() -> None:
    policy = BanPolicy("1/10m", "1h", signals={404: 1}, key=header("X-API-Key"))
    site = Site(bans=policy, rules=[], allowlist=Networks([PEER]))
    for client in (PEER, "198.51.100.9"):
        await call(site.middleware, "/404", headers={"X-API-Key": "k"}, client=(client, 1))
        assert (await site.limiter.banned(header("X-API-Key").of("k")) is not None) is (client != PEER)
