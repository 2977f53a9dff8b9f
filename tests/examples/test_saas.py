"""The API with plans does what its README shows, and remembers customers no longer than it says."""

from __future__ import annotations

import re

import httpx
import pytest

from examples.saas.app import PLANS, make_app
from examples.saas.calls import RenderError
from examples.saas.customers import KEPT_S, Customers
from examples.saas.visit import OPERATOR, opened
from slidegate import Limiter, MemoryStore, Quota
from slidegate.testing import FakeClock
from tests.examples.visits import running, shown

pytestmark = pytest.mark.all


def test_the_command_plays_the_visit_of_the_readme_and_serves_the_api() -> None:
    with (
        running("examples.saas", hints=3) as example,
        httpx.Client(base_url=example.url, trust_env=False, timeout=60) as http,
    ):
        assert example.visit == shown("saas")
        found = re.search(r"^(tenant-\w+) has the free plan and the API key (\S+)$", example.hints, re.MULTILINE)
        token = re.search(r"^Operators show the token (\S+)$", example.hints, re.MULTILINE)
        assert found
        assert token
        tenant, key = found.groups()
        api, ops = {"X-API-Key": key}, {"Authorization": f"Bearer {token[1]}"}
        assert [http.get("/v1/words/a", headers=api).status_code for _ in range(5)] == [200] * 5
        refused = http.get("/v1/words/a", headers=api)
        assert refused.status_code == 429
        assert refused.json() == {"error": "too many calls", "retry_after": int(refused.headers["Retry-After"])}
        assert http.put(f"/operators/tenants/{tenant}/plan/pro", headers=ops).status_code == 200
        assert http.get("/v1/words/a", headers=api).status_code == 200
        assert http.get("/v1/standing", headers=api).json()["left"]["month"] == PLANS["pro"][1] - 6


def caller(app: object, key: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=("203.0.113.9", 1))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://api.test", headers={"X-API-Key": key})


async def test_keys_of_one_tenant_share_its_plan_and_a_smaller_plan_gives_nothing_back() -> None:
    async with opened() as customers, Limiter(MemoryStore(clock=FakeClock())) as limiter:
        app = make_app(limiter, customers, OPERATOR)
        keys = [await customers.add("acme", "pro"), await customers.add("other", "pro")]
        async with caller(app, keys[0]) as acme, caller(app, keys[1]) as other:
            assert [(await acme.get("/v1/words/a")).status_code for _ in range(20)] == [200] * 20
            assert await customers.change_plan("acme", "free")
            refused = await acme.get("/v1/words/a")
            assert refused.status_code == 402, "20 calls are more than the month of the free plan"
            assert (await other.get("/v1/words/a")).status_code == 200


async def test_a_report_that_fails_costs_the_tenant_nothing() -> None:
    async def broken(tenant: str) -> str:
        raise RenderError("out of paper")

    async with opened() as customers, Limiter(MemoryStore(clock=FakeClock())) as limiter:
        app = make_app(limiter, customers, OPERATOR, render=broken)
        async with caller(app, await customers.add("acme", "free")) as acme:
            assert [(await acme.post("/v1/reports")).status_code for _ in range(12)] == [503] * 12
            assert (await acme.get("/v1/standing")).json()["left"] == {"minute": 5, "month": 8}


async def test_a_change_elsewhere_is_heeded_after_five_seconds_and_one_here_at_once() -> None:
    clock = FakeClock()
    async with opened() as elsewhere:
        here = Customers(elsewhere.engine, lambda: clock.now_us / 1_000_000)
        key = await elsewhere.add("acme", "free")
        assert await plan_of(here, key) == "free"
        assert await elsewhere.change_plan("acme", "pro")
        clock.advance(us=int(KEPT_S * 1_000_000) - 1)
        assert await plan_of(here, key) == "free"
        clock.advance(us=1)
        assert await plan_of(here, key) == "pro"
        assert await here.change_plan("acme", "free")
        assert await plan_of(here, key) == "free"


async def plan_of(customers: Customers, key: str) -> str:
    found = await customers.find(key)
    assert found is not None
    assert isinstance(found.limits[1], Quota)
    return found.plan
