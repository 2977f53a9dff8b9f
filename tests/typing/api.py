"""What users write, for type checkers: nothing here is run, and every type is the one that readers are told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_type

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from slidegate import (
    ConfigurationError,
    Decision,
    Event,
    Limit,
    Limiter,
    LimitState,
    MemoryStats,
    MemoryStore,
    Networks,
    Observer,
    RateLimitMiddleware,
    Reason,
    Rule,
    SlidegateError,
    Store,
    client_ip,
    everyone,
    header,
    parse_limits,
)
from slidegate.core import CounterWindow, TimestampWindow, new_window


def tell(event: Event) -> None:
    assert_type(event.kind, str)
    assert_type(event.message, str)


async def tenant(request: HTTPConnection) -> str | None:
    return request.headers.get("x-tenant")


async def units(request: HTTPConnection) -> int:
    return 5


def refused(request: HTTPConnection, decision: Decision) -> Response:
    return PlainTextResponse(f"again in {decision.retry_after} s", 429)


async def search(request: Request) -> Response:
    return PlainTextResponse("found")


# -- the gate ------------------------------------------------------------------------------------------------------

starlette = Starlette(
    routes=[
        Route("/search", search, middleware=[Middleware(RateLimitMiddleware, limits="5/second")]),
        Mount("/inner", middleware=[Middleware(RateLimitMiddleware, rules=[Rule("*", Limit(10, "1m"))])]),
    ]
)
starlette.add_middleware(RateLimitMiddleware, limits="100/minute")

limiter = Limiter(MemoryStore(), observers=[tell])
app = FastAPI()
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    client=client_ip(ipv6_prefix=64),
    rules=[
        Rule("/health", exempt=True),
        Rule("/login", "5/minute; 50/hour", methods=["POST"]),
        Rule("/api/{rest:path}", "100/10s", key=header("X-API-Key"), name="api"),
        Rule("/export", "10/hour", cost=lambda request: 5),
        Rule("/import", "10/hour", cost=units, key=tenant),
        Rule("/feed", ["10/second", Limit(100, "1m")], connection="websocket", final=True),
        Rule("*", "2000/second", key=everyone, name="service"),
        Rule("*", "600/minute"),
    ],
    blocklist=Networks.from_file("blocked.netset"),
    allowlist=Networks(["192.0.2.0/24"]),
    on_refused=refused,
    headers="both",
    enabled=True,
)
RateLimitMiddleware(app, limits=Limit(1, 1), headers=None)
RateLimitMiddleware(app, limit="100/minute")  # type: ignore[call-arg]
RateLimitMiddleware(app, limits="100/minute", headers="old")  # type: ignore[arg-type]
Rule("*", 5)  # type: ignore[arg-type]
Rule("*", "5/minute", cost="5")  # type: ignore[arg-type]
Rule("*", "5/minute", methods=["GET"], key=3)  # type: ignore[arg-type]

# -- without HTTP --------------------------------------------------------------------------------------------------


async def without_http() -> None:
    async with Limiter.from_url("memory://") as opened:
        assert_type(opened, Limiter)
        decision = await opened.hit("user:42", "5/minute; 50/hour", cost=1)
        assert_type(decision, Decision)
        assert_type(decision.allowed, bool)
        assert_type(decision.reason, Reason)
        assert_type(decision.limit, Limit | None)
        assert_type(decision.remaining, int | None)
        assert_type(decision.retry_after, int | None)
        assert_type(decision.retry_after_us, int | None)
        assert_type(decision.more_after, int)
        assert_type(decision.reset_after, int)
        assert_type(decision.states, tuple[LimitState, ...])
        assert_type(decision.violated, tuple[LimitState, ...])
        assert_type(decision.binding, LimitState | None)
        assert_type(await opened.peek("user:42", Limit(5, "1m")), Decision)
        assert_type(await opened.refund(decision), bool)
        assert_type(await opened.reset("user:42"), bool)
        assert_type(await opened.hit("user:42", [Limit(5, "1m"), Limit(50, "1h")]), Decision)
        await opened.hit(42, "5/minute")  # type: ignore[arg-type]
        await opened.hit("user:42", 5)  # type: ignore[arg-type]


# -- limits, networks, stores --------------------------------------------------------------------------------------

limit = Limit(100, "1m", resolution=10, name="burst")
assert_type(limit.amount, int)
assert_type(limit.window_us, int)
assert_type(limit.name, str | None)
assert_type(str(limit), str)
assert_type(Limit(5, timedelta(minutes=5)) == Limit(5, 300), bool)
assert_type(parse_limits("5/minute; 100 per 2 hours; 10/30s"), tuple[Limit, ...])
assert_type(parse_limits([limit, "5/minute"]), tuple[Limit, ...])
Limit("100", "1m")  # type: ignore[arg-type]

networks = Networks(["192.0.2.0/24", "2001:db8::/32"], strict=False)
assert_type("192.0.2.7" in networks, bool)
assert_type(len(networks), int)

store = MemoryStore(max_keys=50_000, clock=lambda: 0)
assert_type(store.stats(), MemoryStats)
assert_type(store.stats().evictions, int)
any_store: Store = store
observer: Observer = tell

# -- the core ------------------------------------------------------------------------------------------------------

window = CounterWindow(slices=10, slice_us=100_000)
window.add(0, 2)
assert_type(window.total(0), int)
assert_type(window.classic(0), int)
assert_type(window.completed(0), int)
assert_type(window.slices(), list[tuple[int, int]])
assert_type(new_window(limit), TimestampWindow | CounterWindow)

# -- errors --------------------------------------------------------------------------------------------------------


def errors(error: ConfigurationError) -> tuple[SlidegateError, ValueError]:
    return error, error


def names(states: Sequence[LimitState]) -> list[str]:
    return [state.name for state in states]
