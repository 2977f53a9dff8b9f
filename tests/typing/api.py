"""What users write, for type checkers: nothing here is run, and every type is the documented one."""

import time
from datetime import UTC, datetime, timedelta
from typing import Literal, assert_type

import httpx
import httpx2
from fastapi import FastAPI
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response

import slidegate
import slidegate.httpx2 as for_httpx2
from slidegate import BanPolicy, Decision, Limit, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, user
from slidegate.core import Ban, LimitState, Reason, Store
from slidegate.events import Event, Observer, Outcome, Subscription
from slidegate.httpx import LimitedTransport, SyncLimitedTransport, TurnTimeout
from slidegate.ops.statistics import Statistics, Stats, Traffic
from slidegate.testing import FakeClock, RecordingObserver, limits_clock, limits_off, reset_limits
from slidegate.windows import CounterWindow


def tell(event: Event) -> None:
    assert_type(event.kind, str)


async def tenant(request: HTTPConnection) -> str | None:
    return request.headers.get("x-tenant")


async def units(request: HTTPConnection) -> int:
    return 5


def refused(request: HTTPConnection, decision: Decision) -> Response:
    return PlainTextResponse(f"again in {decision.retry_after} s", 429)


async def polite(request: Request, decision: Decision) -> Response | None:
    if slidegate.decision_of(request).retry_after:
        return PlainTextResponse(slidegate.client_key(request), decision.status)
    return None


async def account_of(request: Request) -> str:
    return str(await request.json())


def by_key_or_address(request: Request) -> str:
    assert_type(slidegate.decision_of(request), Decision)
    return request.headers.get("x-api-key") or slidegate.client_key(request)


limiter, store = Limiter(MemoryStore(), observers=[tell]), MemoryStore(max_keys=50_000, clock=lambda: 0)
networks, by_class, by_status = slidegate.Networks(["192.0.2.0/24", "2001:db8::/32"]), {"4xx": 1}, {404: 1}
guessing = BanPolicy(
    Limit(20, "1h"),
    timedelta(hours=1),
    signals={401: 1, "4xx": 2, "/.env": "ban", "refused": 1},
    name="guessing",
    key=slidegate.client_ip(ipv4_prefix=24),
    shadow=True,
)
BanPolicy(signals=by_class)
BanPolicy(signals=by_status)
BanPolicy(signals={404: "ban"})
BanPolicy(signals={404: "much"})  # type: ignore[dict-item]

app = FastAPI()
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    client=slidegate.client_ip(ipv6_prefix=64),
    rules=[
        Rule("/api/{rest:path}", "100/10s", key=slidegate.header("X-API-Key"), name="api", methods=["POST"]),
        Rule("/import", "10/hour", cost=units, key=tenant),
        Rule("/feed", ["10/second", Limit(100, "1m")], connection="websocket", final=True),
        Rule("/basket", "5/minute", key=slidegate.cookie("session")),
        Rule("/search", "5/minute", key=slidegate.query("token"), count_if=lambda status: status == 401),
        Rule("/{tenant}", slidegate.Quota("10000/month", zone="Europe/Berlin"), key=slidegate.path_param("tenant")),
        Rule("/mcp", "5/minute", key=slidegate.mcp_tool("search", validated=True)),
        Rule("*", "5/minute", key=slidegate.combine(slidegate.header("X-API-Key"), user)),
        Rule("*", "5/minute", key=slidegate.network("operators.mmdb", by="country")),
        Rule("*", "5/minute", key=by_key_or_address),
        Rule("*", "2000/second", key=slidegate.everyone, name="service"),
    ],
    messages=slidegate.MessageLimits("10/second"),
    bans=[guessing, BanPolicy()],
    blocklist=slidegate.Networks.from_file("blocked.netset"),
    on_refused=refused,
    headers=("draft", "legacy"),
    enabled=True,
)
app.add_middleware(RateLimitMiddleware.from_file, path="slidegate.toml", limiter=limiter)
app.add_middleware(RateLimitMiddleware, limits="5/minute", on_refused=polite)
app.add_exception_handler(slidegate.RateLimitExceeded, slidegate.rate_limit_exceeded)
Middleware(RateLimitMiddleware, rules=[Rule("*", Limit(10, "1m"))])
RateLimitMiddleware(app, limits=Limit(1, "1s"), default_limits=["60/minute", Limit(5, "1s")], headers=None)
RateLimit("5/minute", key=account_of)
RateLimit(limits=lambda request: "5/minute")
assert_type(RateLimit.exempt(len)([]), int)
RateLimitMiddleware(app, limits="100/minute", headers="old")  # type: ignore[arg-type]
RateLimitMiddleware.from_file(app, "slidegate.toml", headers="both")  # type: ignore[call-arg]
Limiter(MemoryStore(), observer=[])  # type: ignore[call-arg]
Rule("*", 5)  # type: ignore[arg-type]
Rule("*", "5/minute", methods=["GET"], key=3)  # type: ignore[arg-type]
slidegate.Quota(10, "month")  # type: ignore[arg-type, call-arg]


async def endpoint(request: Request) -> Response:
    assert_type(await slidegate.strike(request, "ban", "forged token", policy="guessing"), Ban | None)
    await slidegate.strike(request, "much")  # type: ignore[arg-type]
    try:
        assert_type(await slidegate.charge(request, 1_200, rule="tokens"), Decision)
        assert_type(await slidegate.settle(request, 900), bool)
        assert_type(await slidegate.settle(request, {"tokens": 900, "budget": 2}), bool)
        await slidegate.charge(request, {"tokens": "900"})  # type: ignore[dict-item]
    except slidegate.StoreError as error:
        assert_type(error.concerns, Literal["request", "writes", "server"])
    return PlainTextResponse("try again")


@app.get("/items/{number}")
@RateLimit("100/minute")
@RateLimit("10/second", key=user)
def item(number: int, /, *, dark: bool = False) -> int:
    return 2 * number


class Page(HTTPEndpoint):
    @RateLimit("100/minute")
    async def get(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("page")


async def decorated(page: Page, request: Request) -> None:
    """A decorated function, sync too, is a coroutine function with the same parameters."""
    assert_type(await item(3, dark=True), int)
    assert_type(await page.get(request), PlainTextResponse)
    item(3) + 1  # type: ignore[operator]
    await item("3")  # type: ignore[arg-type]
    page.get(request).body  # type: ignore[attr-defined]  # noqa: B018


# -- without HTTP ------------------------------------------------------------------------------------------------------


async def without_http() -> None:
    async with Limiter.from_url("memory://") as opened:
        assert_type(opened, Limiter)
        decision = await opened.hit("user:42", "5/minute; 50/hour", cost=1)
        assert_type(decision, Decision)
        assert_type(decision.allowed, bool)
        assert_type(decision.reason, Reason)
        assert_type(decision.states, tuple[LimitState, ...])
        assert_type(decision.binding, LimitState | None)
        assert_type(await opened.reset("user:42"), bool)
        assert_type(opened.hit("user:42", "5/minute"), Decision)  # type: ignore[assert-type, unused-coroutine]
        await opened.hit("user:42", 5)  # type: ignore[arg-type]
    ban = await limiter.ban("203.0.113.7", "1h", reason="manual", by="ana")
    assert_type(ban, Ban)
    assert_type(ban.until, datetime | None)
    assert_type(await limiter.banned("203.0.113.7"), Ban | None)
    assert_type([ban async for ban in limiter.bans()], list[Ban])
    assert_type(await limiter.strike("user:42", guessing, 5, "forged token"), Ban | None)
    assert_type(await limiter.import_bans(["{}"]), int)
    assert_type(await limiter.import_bans(limiter.export_bans()), int)
    stats = await Statistics.of(limiter).read("5m")
    assert_type(stats, Stats)
    assert_type(stats.routes, dict[str, Traffic])
    assert_type(stats.rules["api"], Traffic)
    assert_type(stats.total.p95_us, float | None)


assert_type(limiter.sync, slidegate.SyncLimiter)
assert_type(limiter.sync.hit(slidegate.header("X-API-Key").of("k123"), "5/minute"), Decision)
assert_type(limiter.sync.refund(limiter.sync.charge("user:42", "5/minute", 3)), bool)
assert_type(limiter.sync.bans(), list[Ban])


@limiter.limited("5/second", key=lambda user, *_: f"user:{user}")
def render(user: str, /, *pages: int, dark: bool = False) -> bytes:
    return b""


assert_type(render("ann", 1, 2, dark=True), bytes)
limiter.limited("5/second")  # type: ignore[call-arg]


def functions() -> None:
    try:
        with limiter.limited("5/second", key="report") as decision:
            assert_type(decision, Decision)
    except slidegate.RateLimitExceeded as refused:
        assert_type(refused.retry_after_s, float | None)


limit = Limit(100, "1m", resolution=10, name="burst")
assert_type(slidegate.parse_limits([limit, "5/minute"]), tuple[Limit, ...])
assert_type(limit.counter.spend(b"", 0, 1), tuple[bytes, tuple[int, int, int, int]])
assert_type(CounterWindow(slices=10, slice_us=100_000).slices(), list[tuple[int, int]])
assert_type("192.0.2.7" in networks, bool)
assert_type(store.key_count(), int)
any_store: Store = store


class Pager(Observer):
    def request(self, outcome: Outcome, /) -> None:
        assert_type(outcome.duration_us, int)


limiter.observe(Pager())
assert_type(limiter.observe(tell), Subscription)


def account(request: httpx.Request) -> str | None:
    return request.url.host or None


httpx.Client(transport=SyncLimitedTransport(limits="10/second", transport=httpx.HTTPTransport()))
LimitedTransport(
    limits=[limit],
    key=account,
    limiter=Limiter(),
    transport=httpx.AsyncHTTPTransport(),
    wait=timedelta(minutes=2),
    retries=0,
    name="api",
)


def account2(request: httpx2.Request) -> str | None:
    return request.url.host or None


httpx2.Client(transport=for_httpx2.SyncLimitedTransport(limits="10/second", transport=httpx2.HTTPTransport()))
httpx2.AsyncClient(transport=for_httpx2.LimitedTransport(limits=[limit], key=account2))
httpx2.AsyncClient(transport=LimitedTransport(limits=[limit]))  # type: ignore[arg-type]
httpx.Client(transport=for_httpx2.SyncLimitedTransport(limits=[limit]))  # type: ignore[arg-type]
LimitedTransport(limits=[limit], key=account2)  # type: ignore[arg-type]
for_httpx2.LimitedTransport(limits=[limit], key=account)  # type: ignore[arg-type]
for_httpx2.LimitedTransport(limits=[limit], retry=1)  # type: ignore[call-arg]


def errors2(late: for_httpx2.TurnTimeout) -> tuple[slidegate.SlidegateError, httpx2.PoolTimeout]:
    assert_type(late.key, str)
    return late, late


async def sends(awaited: LimitedTransport, blocking: for_httpx2.SyncLimitedTransport) -> None:
    assert_type(await awaited.handle_async_request(httpx.Request("GET", "/")), httpx.Response)
    assert_type(blocking.handle_request(httpx2.Request("GET", "/")), httpx2.Response)


def errors(
    late: TurnTimeout, wrong: slidegate.ConfigurationError
) -> tuple[list[slidegate.SlidegateError], httpx.PoolTimeout, ValueError]:
    assert_type(late.retry_after_us, int | None)
    return [late, wrong], late, wrong


# -- in tests of applications ------------------------------------------------------------------------------------------

clock = FakeClock()
assert_type(FakeClock(start_us=7)(), int)
clock.advance("30s")
clock.advance(timedelta(minutes=1), us=-5)
clock.advance(60)  # type: ignore[arg-type]
clock.set(datetime(2030, 1, 31, tzinfo=UTC))
clock.set("noon")  # type: ignore[arg-type]

observer = RecordingObserver(without=["refused"])
Limiter(MemoryStore(clock=clock), observers=[observer])
assert_type(observer.kinds, list[str])
assert_type(observer.events, list[Event])

reset_limits()
reset_limits(Limiter())  # type: ignore[call-arg]
with limits_off() as nothing:
    assert_type(nothing, None)
with limits_clock(FakeClock()) as moved:
    assert_type(moved, FakeClock)
with limits_clock(lambda: time.time_ns() // 1_000):
    pass
with limits_clock("2030-01-01"):  # type: ignore[type-var]
    pass
