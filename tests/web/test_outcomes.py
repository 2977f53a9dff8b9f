"""What observers hear of a request: once, when its last byte is out, whatever became of it, and at no risk for it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import Reason
from slidegate.events import Observer, Outcome
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, page, scope_of, statuses

OTHER = ("198.51.100.7", 1)


class Outcomes(Observer):
    def __init__(self) -> None:
        self.heard: list[Outcome] = []

    def request(self, outcome: Outcome, /) -> None:
        self.heard.append(outcome)


class Site:
    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock(10**15)
        self.outcomes = Outcomes()
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.outcomes])
        routes = [
            Route("/items/{id}", self.item, methods=["GET"]),
            Route("/limited", RateLimit("1/hour", name="tight")(page)),
        ]
        options.setdefault("rules", [Rule("*", "3/hour", name="all")])
        self.app = RateLimitMiddleware(Starlette(routes=routes), limiter=self.limiter, **options)

    async def item(self, request: Request) -> PlainTextResponse:
        self.clock.advance("30ms")
        return PlainTextResponse("x", int(request.path_params["id"]))

    @property
    def seen(self) -> list[tuple[Any, ...]]:
        heard = self.outcomes.heard
        return [(one.allowed, str(one.reason), one.rules, one.route, one.status, one.ended) for one in heard]


async def test_each_request_has_one_outcome() -> None:
    site = Site(
        blocklist=Networks([OTHER[0]]),
        rules=[
            Rule("/free", exempt=True),
            Rule("*", "3/hour", name="all"),
            Rule("*", "1/hour", shadow=True, name="stricter"),
        ],
    )
    for path in ("/items/200", "/items/404", "/limited", "/limited", "/free", "/items/200"):
        await call(site.app, path)
    await call(site.app, "/items/200", client=OTHER)
    items, refused = "GET /items/{id}", (False, "limited")
    assert site.seen == [
        (True, "ok", ("all",), items, 200, "success"),
        (True, "ok", ("all",), items, 404, "success"),
        (True, "ok", ("all", "tight"), "GET /limited", 200, "success"),
        (*refused, ("all",), "(no route)", 429, "refused"),
        (True, "exempt", (), "(no route)", 404, "success"),
        (*refused, ("all",), "(no route)", 429, "refused"),
        (False, "blocked", (), "(no route)", 403, "refused"),
    ]
    heard = site.outcomes.heard
    assert [one.shadow_rules for one in heard] == [(), ("stricter",), ("stricter",), (), (), (), ()]
    assert [(one.began_us, one.duration_us) for one in heard[:2]] == [(10**15, 30_000), (10**15 + 30_000, 30_000)]
    assert {state.key for one in heard[:3] for decision in one.decisions for state in decision.states} == {PEER}
    assert {one.waited_us for one in heard} == {None}


async def test_a_refusal_at_an_endpoint_has_its_route_and_a_ban_no_rule() -> None:
    site = Site(bans=BanPolicy("2/10m", "1h", ban_private=True))
    assert await statuses(site.app, 4, "/limited") == [200, 429, 429, 403]
    assert site.seen[1:] == [
        (False, "limited", ("tight",), "GET /limited", 429, "refused"),
        (False, "limited", ("tight",), "GET /limited", 429, "refused"),
        (False, "banned", (), "(no route)", 403, "refused"),
    ]


@pytest.mark.parametrize("raises", [False, True])
async def test_an_outcome_comes_behind_the_last_byte_and_an_observer_that_fails_hurts_no_request(raises: bool) -> None:
    order: list[str] = []
    heard = Outcomes()

    class Failing(Observer):
        def request(self, outcome: Outcome, /) -> None:
            order.append(f"outcome {outcome.status}")
            if raises:
                raise RuntimeError("no")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x", "more_body": more})
        order.append("background")

    async def send(message: Message) -> None:
        order.append(message["type"].rpartition(".")[2])

    limiter = Limiter(observers=[Failing(), heard])
    await RateLimitMiddleware(app, limits="9/hour", limiter=limiter)(scope_of(), anyio.sleep_forever, send)  # type: ignore[arg-type]
    assert order == ["start", "body", "body", "outcome 200", "background"]
    assert len(heard.heard) == 1


async def test_an_observer_that_comes_while_a_request_is_under_way_hears_of_the_next_one() -> None:
    limiter, outcomes = Limiter(), Outcomes()

    async def attaching(scope: Scope, receive: Receive, send: Send) -> None:
        limiter.observe(outcomes)
        await hello(scope, receive, send)

    await call(RateLimitMiddleware(attaching, limits="9/hour", limiter=limiter))
    assert outcomes.heard == []
    await call(RateLimitMiddleware(hello, limits="9/hour", limiter=limiter))
    assert [one.reason for one in outcomes.heard] == [Reason.OK]
