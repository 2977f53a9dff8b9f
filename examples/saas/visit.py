"""A visit to the API over HTTP: plans and their ends, a larger plan, reports, strangers, and an operator at work.

Its store goes by a clock that the visit turns, so a minute of waiting takes no time. Clients of many addresses come
through the visit as through a proxy, which names them in X-Forwarded-For.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from sqlalchemy.ext.asyncio import create_async_engine

from examples.serving import HOST, served, show, title
from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock

from .app import PLANS, REPORTS_AT_ONCE, make_app
from .customers import Customers

OPERATOR = "an-operators-token-for-this-visit"
START_US = int(datetime(2026, 3, 20, 9, 0, tzinfo=UTC).timestamp()) * 1_000_000


@asynccontextmanager
async def opened(url: str = "") -> AsyncIterator[Customers]:
    """Open the database, by default a new file that goes away, and make its tables."""
    with TemporaryDirectory() as place:
        engine = create_async_engine(url or f"sqlite+aiosqlite:///{Path(place, 'saas.db')}")
        try:
            customers = Customers(engine)
            await customers.make_tables(PLANS)
            yield customers
        finally:
            await engine.dispose()


class Press:
    """Renders reports when it is told to, so that the visit can have several under way at a time."""

    def __init__(self) -> None:
        self.started = asyncio.Semaphore(0)
        self.go = asyncio.Event()

    async def __call__(self, tenant: str) -> str:
        self.started.release()
        await self.go.wait()
        return f"the report of {tenant}"


class Visit:
    """One visit: its clock, its customers, and its client."""

    def __init__(self, clock: FakeClock, customers: Customers, press: Press, http: httpx.AsyncClient) -> None:
        self.clock = clock
        self.customers = customers
        self.press = press
        self.http = http

    async def call(
        self, key: str, path: str = "/v1/words/window", method: str = "GET", **fields: str
    ) -> httpx.Response:
        """Call the API with a key."""
        return await self.http.request(method, path, headers={"X-API-Key": key, **fields})

    async def calls(self, key: str, count: int, **fields: str) -> str:
        """Make several calls; return their statuses in words."""
        return counted([(await self.call(key, **fields)).status_code for _ in range(count)])

    async def operate(self, method: str, path: str) -> httpx.Response:
        """Ask as an operator."""
        return await self.http.request(method, f"/operators{path}", headers={"Authorization": f"Bearer {OPERATOR}"})


def counted(statuses: list[int]) -> str:
    """Write statuses as ``5 x 200, 1 x 429``."""
    return ", ".join(f"{statuses.count(status)} x {status}" for status in dict.fromkeys(statuses))


async def visit() -> None:
    """Play the visit, and print what happens."""
    clock, press = FakeClock(START_US), Press()
    async with opened() as customers, Limiter(MemoryStore(clock=clock)) as limiter:
        app = make_app(limiter, customers, OPERATOR, proxies=[HOST], render=press)
        async with served(app) as server, httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
            tour = Visit(clock, customers, press, http)
            acme = await customers.add("acme", "free")
            await minute_and_month(tour, acme)
            await larger_plan(tour, acme)
            await reports(tour, acme)
            await strangers(tour)
            await operator(tour, acme)


async def minute_and_month(tour: Visit, acme: str) -> None:
    """Spend a free plan."""
    per_minute, per_month = PLANS["free"]
    title(f"acme has the free plan: {per_minute} calls a minute, {per_month} a month")
    show("6 calls at once", await tour.calls(acme, 6))
    wait_s = int((await tour.call(acme)).headers["Retry-After"])
    tour.clock.advance(us=wait_s * 1_000_000 - 1)
    show(f"a microsecond before the {wait_s} s of Retry-After are over", (await tour.call(acme)).status_code)
    tour.clock.advance(us=1)
    show("and when they are over", (await tour.call(acme)).status_code)
    show("2 more calls", await tour.calls(acme, 2))
    spent = await tour.call(acme)
    days = round(int(spent.headers["Retry-After"]) / 86_400, 1)
    show("the month is spent", f"{spent.status_code}: {spent.json()['error']}; {days} days are left of it")


async def larger_plan(tour: Visit, acme: str) -> None:
    """Buy a larger plan, under which the spent calls stay spent."""
    title("acme buys the pro plan; what it has spent stays spent")
    show("an operator changes the plan", (await tour.operate("PUT", "/tenants/acme/plan/pro")).status_code)
    show("the next call", (await tour.call(acme)).status_code)
    standing = (await tour.call(acme, "/v1/standing")).json()
    show(
        f"left of the {standing['plan']} plan",
        f"{standing['left']['minute']} this minute, {standing['left']['month']} this month",
    )
    unpaid = await tour.customers.add("initech", "pro", paid=False)
    late = await tour.call(unpaid)
    show("initech has not paid", f"{late.status_code}: {late.json()['detail']}")


async def reports(tour: Visit, acme: str) -> None:
    """Ask for more reports than a tenant may have under way."""
    title(f"reports are expensive: {REPORTS_AT_ONCE} at a time for each tenant")
    running = []
    for _ in range(REPORTS_AT_ONCE):
        running.append(asyncio.create_task(tour.call(acme, "/v1/reports", "POST")))
        await tour.press.started.acquire()
    third = await tour.call(acme, "/v1/reports", "POST")
    show(
        "a third one meanwhile", f"{third.status_code}, Retry-After: {third.headers.get('Retry-After', 'nobody knows')}"
    )
    tour.press.go.set()
    show("the two come", counted([answer.status_code for answer in await asyncio.gather(*running)]))
    show("a third one now", (await tour.call(acme, "/v1/reports", "POST")).status_code)


async def strangers(tour: Visit) -> None:
    """Try keys that nobody owns."""
    title("strangers are counted by address, and guessing keys gets them banned")
    stranger = {"X-Forwarded-For": "203.0.113.9"}
    asked = tour.customers.looked_up
    statuses = []
    for number in range(60):
        statuses.append((await tour.call(f"made-up-{number}", **stranger)).status_code)
        tour.clock.advance("7s")
    show("60 made-up keys from one address, one every 7 s", counted(statuses))
    show("questions to the database that they cost", tour.customers.looked_up - asked)
    show("another address without a key", (await tour.call("", **{"X-Forwarded-For": "203.0.113.10"})).status_code)


async def operator(tour: Visit, acme: str) -> None:
    """Look at one customer, and forget what it has spent."""
    title("an operator helps acme")
    used = (await tour.operate("GET", "/tenants/acme")).json()["used"]
    show("spent", ", ".join(f"{units} this {span}" for span, units in used.items()))
    show("reset", (await tour.operate("POST", "/tenants/acme/reset")).json())
    show("spent", (await tour.operate("GET", "/tenants/acme")).json()["used"] or "nothing")
    show("the same without a token", (await tour.http.post("/operators/tenants/acme/reset")).status_code)
    show("acme's next call", (await tour.call(acme)).status_code)
