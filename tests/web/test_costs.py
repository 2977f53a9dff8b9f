"""Costs that are known only afterwards: an estimate is replaced once, on every store, whoever leaves; and debts."""

import json
import random
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, Quota, RateLimit, RateLimitMiddleware, Rule, everyone, settle

from ..asgi import call
from ..redis_servers import AT_REDIS

AMOUNT = 10_000
WINDOWS = ("10000/hour; 1000000/day", Quota("10000/year"), "10000/hour")


@pytest.mark.parametrize("limits", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_what_was_used_is_what_is_counted(url: str, limits: Any, rng: random.Random) -> None:
    """Also where a limit at the endpoint has charged what is missing from its estimate."""
    settled: list[bool] = []

    def named(name: str) -> Any:
        return lambda request: int(request.query_params[name])

    @RateLimit(limits=limits, cost=named("again"), key=everyone, name="tokens")
    async def complete(request: Request) -> PlainTextResponse:
        used = json.loads(request.query_params["used"])
        settled.extend([await settle(request, units, rule="tokens") for units in used])
        return PlainTextResponse("done")

    async def left_after(estimate: int, again: int, used: list[int]) -> int:
        """Return what the limit with the least room has left after a request, by the request that follows it."""
        for query in (f"estimate={estimate}&again={again}&used={used}", "estimate=0&again=0&used=[]"):
            answer = await call(app, query_string=query.encode())
            assert answer.status == 200
        return int(answer.headers["ratelimit"].partition(";r=")[2].partition(";")[0])

    rule = Rule("*", limits, cost=named("estimate"), key=everyone, name="tokens")
    async with Limiter.from_url(url, deadline="30s") as limiter:
        app = RateLimitMiddleware(Starlette(routes=[Route("/", complete)]), rules=[rule], limiter=limiter)
        expected = AMOUNT
        for _ in range(40):
            estimate, again = rng.randint(0, 120), rng.choice([0, rng.randint(0, 150)])
            used = [rng.randint(0, 150) for _ in range(rng.choice([0, 1, 1, 1, 2]))]
            settled.clear()
            expected -= used[0] if used else max(estimate, again)
            assert await left_after(estimate, again, used) == expected
            assert settled == [True, False][: len(used)], "a request is settled once"
