"""Costs that are known only afterwards: an estimate is replaced once, on every store, whoever leaves; and debts."""

import random
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, Quota, RateLimitMiddleware, Rule, everyone, settle

from ..asgi import Answer, call
from ..redis_servers import AT_REDIS

AMOUNT = 10_000
WINDOWS = ("10000/hour; 1000000/day", Quota("10000/year"), "10000/hour")


def estimated(request: Request) -> int:
    return int(request.query_params["estimate"])


def tokens(limits: Any = "10000/hour", **options: Any) -> Rule:
    return Rule("*", limits, cost=estimated, key=everyone, name="tokens", **options)


class Model:
    def __init__(self, limiter: Limiter, *rules: Rule) -> None:
        self.limiter = limiter
        self.settled: list[bool] = []
        middleware = Middleware(RateLimitMiddleware, rules=rules or (tokens(),), limiter=limiter)
        self.app = Starlette(routes=[Route("/", self._complete)], middleware=[middleware])

    async def _complete(self, request: Request) -> PlainTextResponse:
        for used in filter(None, request.query_params["used"].split(",")):
            self.settled.append(await settle(request, int(used), rule="tokens"))
        return PlainTextResponse("done")

    async def ask(self, estimate: int, *used: int) -> Answer:
        query = f"estimate={estimate}&used={','.join(map(str, used))}"
        return await call(self.app, query_string=query.encode())

    async def spent(self) -> int:
        """Return the units in the window that has the least room."""
        answer = await self.ask(0)
        remaining = answer.headers["ratelimit"].partition(";r=")[2].partition(";")[0]
        return AMOUNT - int(remaining)


@pytest.mark.parametrize("limits", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_what_was_used_is_what_is_counted(url: str, limits: Any, rng: random.Random) -> None:
    async with Limiter.from_url(url, deadline="30s") as limiter:
        model, expected = Model(limiter, tokens(limits)), 0
        for _ in range(40):
            estimate, used = rng.randint(0, 120), [rng.randint(0, 150) for _ in range(rng.choice([0, 1, 1, 1, 2]))]
            model.settled.clear()
            assert (await model.ask(estimate, *used)).status == 200
            assert model.settled == [True, False][: len(used)], "a request is settled once"
            expected += used[0] if used else estimate
            assert await model.spent() == expected
