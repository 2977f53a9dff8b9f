"""The events of requests: one for each refusal, with everything that an operator asks about it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    Networks,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    Rule,
    StoreError,
    client_ip,
    header,
)
from slidegate.events import Event
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, page, scope_of, send_scope, statuses
from ..remote_stores import RemoteStore

OTHER = "198.51.100.7"
TWICE: Any = RateLimit("2/minute", name="tight")


async def limited(request: Request) -> PlainTextResponse:
    await TWICE.check(request)
    return PlainTextResponse("hi")


async def swallowing(request: Request) -> PlainTextResponse:
    with suppress(RateLimitExceeded):
        await TWICE.check(request)
    return PlainTextResponse("hi")


class Site:
    """A middleware whose observer keeps the events of requests."""

    def __init__(self, app: ASGIApp = hello, **options: Any) -> None:
        self.clock = FakeClock(10**12)
        self.heard: list[Event] = []
        self.limiter = options.pop("limiter", None) or Limiter(MemoryStore(clock=self.clock))
        self.limiter.observe(self.heard.append, kinds=["refused", "shadow_refused"])
        self.middleware = RateLimitMiddleware(app, limiter=self.limiter, **options)

    @property
    def refused(self) -> list[dict[str, object]]:
        events = [event for event in self.heard if event.kind == "refused"]
        assert all(event.message.isprintable() and len(event.message) < 1_000 for event in events)
        return [dict(event.details) for event in events]

    async def last(self, *args: Any, **more: Any) -> dict[str, object]:
        """Send a request that is refused, and return the details of its one event."""
        before = len(self.refused)
        answer = await call(self.middleware, *args, **more)
        (details,) = self.refused[before:]
        assert details["status"] == answer.status
        return details


async def test_a_refusal_by_a_limit() -> None:
    site = Site(
        rules=[Rule("*", "9/hour", name="all"), Rule("/shop/{rest:path}", "2/minute", name="shop")],
    )
    assert await statuses(site.middleware, 2, "/shop/items/7") == [200, 200]
    assert site.refused == []
    site.clock.advance("1s")
    for _ in range(2):
        details = await site.last("/shop/items/<script>")
        assert details == {
            "key": PEER, "client": PEER, "rule": "shop", "limit": "2/1m", "reason": "limited", "by": "",
            "route": "(no route)", "method": "GET", "retry_after_s": 59, "status": 429,
        }  # fmt: skip


async def test_a_refusal_by_a_key_that_is_secret_shows_its_digest_as_the_store_has_it() -> None:
    site = Site(rules=[Rule("*", "1/hour", key=header("X-API-Key"), name="api")])
    await call(site.middleware, headers={"x-api-key": "s3cret"})
    details = await site.last(headers={"x-api-key": "s3cret"})
    assert details["client"] == PEER
    key = str(details["key"])
    assert key.startswith("header:")
    assert "s3cret" not in repr(site.heard)
    assert await site.limiter.reset(key)
    assert (await call(site.middleware, headers={"x-api-key": "s3cret"})).status == 200


async def test_refusals_by_a_ban_a_list_a_rule_a_plan_and_a_cost() -> None:
    site = Site(
        rules=[
            Rule("/shut", block=True, status=503, name="shut"),
            Rule("/plan", lambda request: "nobody", name="plan"),
            Rule("/big", "3/hour", cost=lambda request: 5, name="big"),
        ],
        blocklist=Networks([f"{OTHER}/32"]),
        bans=BanPolicy("9/10m", "1h", name="abuse"),
    )
    await site.limiter.ban("192.0.2.0/24", "1h", reason="r", by="ann")
    shown = [await site.last(path) for path in ("/shut", "/plan", "/big")]
    shown += [await site.last(client=(client, 1)) for client in (OTHER, "192.0.2.1")]
    names = ("key", "client", "rule", "limit", "by", "reason", "retry_after_s", "status")
    assert [tuple(details[name] for name in names) for details in shown] == [
        (PEER, PEER, "shut", "", "", "blocked", None, 503),
        (PEER, PEER, "plan", "", "", "nobody", None, 429),
        (PEER, PEER, "big", "3/1h", "", "too_large", None, 429),
        (OTHER, OTHER, "", "", "", "blocked", None, 403),
        ("192.0.2.0/24", "192.0.2.1", "", "", "ann", "banned", 3600, 403),
    ]


async def test_a_refusal_because_the_store_does_not_answer() -> None:
    class Sick(RemoteStore):
        def hit(self, *arguments: object, **line: object) -> Any:
            raise StoreError("redis://user:s3cret@h:6379/0 is away")

    site = Site(limiter=Limiter(Sick(), on_error="deny"), limits="9/hour")
    details = await site.last()
    assert (details["reason"], details["status"], details["retry_after_s"]) == ("unavailable", 503, 1)
    assert "s3cret" not in repr(site.heard)


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}])
async def test_a_handshake_that_is_refused(extensions: dict[str, Any]) -> None:
    site = Site(limits="1/hour")
    scope = scope_of("/ws", type="websocket", extensions=extensions)
    site.clock.advance("1s")
    await send_scope(site.middleware, dict(scope))
    await send_scope(site.middleware, dict(scope))
    (details,) = site.refused
    assert details["method"] == "WEBSOCKET"
    assert details["status"] == (429 if extensions else 403)


async def test_a_client_chooses_no_more_than_bounded_printable_text_and_its_key() -> None:
    site = Site(limits="1/hour", client=client_ip())
    await call(site.middleware)
    evil = "\x1b[2J\r\n<script>\u202e" * 5_000
    details = await site.last(f"/{evil}", method=f"{evil}GET", headers={"x-forwarded-for": evil})
    assert len(str(details["method"])) <= 64
    assert str(details["method"]).isprintable()
    assert sum(len(str(value)) for value in details.values()) < 500
    assert details["route"] == "(no route)"


@pytest.mark.parametrize("at", ["http.response.start", "http.response.body"])
async def test_a_client_that_leaves_before_its_refusal_is_told_of_once(at: str) -> None:
    async def send(message: Message) -> None:
        if message["type"] == at:
            raise OSError("the client has left")

    site = Site(limits="1/hour")
    await call(site.middleware)
    with pytest.raises(OSError, match="left"):
        await site.middleware(scope_of(), anyio.sleep_forever, send)  # type: ignore[arg-type]
    assert [details["status"] for details in site.refused] == [429]


@settings(max_examples=25, deadline=None)
@given(st.data())
async def test_every_refused_request_makes_one_event_and_every_other_none(data: st.DataObject) -> None:
    """The record that the middleware leaves in the scope says which requests were refused."""
    options: dict[str, Any] = {}
    if data.draw(st.booleans()):
        options["bans"] = BanPolicy("4/10m", "1m", name="abuse")
    if data.draw(st.booleans()):
        options["blocklist"] = Networks([f"{OTHER}/32"])
    if data.draw(st.booleans()):
        options["on_refused"] = lambda request, decision: PlainTextResponse("no", 420)
    rules = [Rule("/free", exempt=True), Rule("/shut", block=True), Rule("*", "6/minute")]
    if data.draw(st.booleans()):
        rules.append(Rule("*", "3/minute", key=lambda request: "x", name="asked"))
    app: Any = Starlette(routes=[Route(path, page) for path in ("/", "/free", "/shut")])
    app.router.routes += [Route("/limited", limited), Route("/swallowing", swallowing)]
    further_in: list[Event] = []
    if data.draw(st.booleans()):
        inner = Limiter()
        inner.observe(further_in.append, kinds=["refused"])
        app.add_middleware(RateLimitMiddleware, limits="5/minute", limiter=inner)
    site = Site(app, rules=rules, ignore_checks=["SG103"], **options)
    count = 0
    for _ in range(data.draw(st.integers(1, 25))):
        path = data.draw(st.sampled_from(["/", "/free", "/shut", "/limited", "/swallowing", "/none"]))
        client = data.draw(st.sampled_from([PEER, OTHER]))
        scope = scope_of(path, client=(client, 1))
        await send_scope(site.middleware, scope)
        decision = scope["slidegate.ended"].decision
        count += not decision.allowed
        assert len(site.refused) + len(further_in) == count, (path, client, decision)
        if data.draw(st.integers(0, 9)) == 0:
            site.clock.advance("1m")
