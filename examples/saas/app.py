"""The API and its two middlewares: the inner one asks the database who calls, and holds each tenant to its plan."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from slidegate import BanPolicy, Decision, Limit, Limiter, Quota, RateLimitMiddleware, Rule, client_ip
from slidegate.core import Reason

from .calls import Render, calls, render_report
from .customers import Customer, Customers
from .operators import operators

PLANS = {"free": (5, 8), "pro": (60, 10_000)}
"""Calls per minute and per month of each plan. They are this small so that a visit sees their ends."""
STRANGERS = "10/minute"
"""The limit of each address that shows no key, or one that nobody owns."""
REPORTS_AT_ONCE = 2


def is_billed(status: int) -> bool:
    """Tell whether an answer counts: one that says that we failed costs the customer nothing."""
    return status < 500


def refused(request: HTTPConnection, decision: Decision) -> Response:
    """Make the API's own answer; the middleware adds Retry-After and the RateLimit fields."""
    if decision.reason == Reason.BANNED:
        return JSONResponse({"error": "this address is shut out"}, status_code=403)
    if any(isinstance(state.limit, Quota) for state in decision.violated):
        # Money helps, so it is no 429.
        return JSONResponse({"error": "the calls of this month are spent", "plans": sorted(PLANS)}, status_code=402)
    return JSONResponse({"error": "too many calls", "retry_after": decision.retry_after}, status_code=429)


def plan_rules(customers: Customers) -> list[Rule]:
    """Return the rules that hold each tenant to its plan."""

    async def find(request: HTTPConnection) -> Customer | None:
        return await customers.find(request.headers.get("X-API-Key", ""))

    async def caller(request: HTTPConnection) -> str:
        customer = await find(request)
        return customer.key if customer else ""  # empty: by address

    async def limits_of(request: HTTPConnection) -> str | Sequence[Limit | Quota]:
        customer = await find(request)
        return customer.limits if customer else STRANGERS

    return [
        # To look at one's own standing is free, within reason.
        Rule("/v1/standing", "30/minute", key=caller, name="standing", final=True),
        Rule("/v1/reports", concurrency=REPORTS_AT_ONCE, methods=["POST"], key=caller, name="reports"),
        Rule("/v1/{rest:path}", limits_of, key=caller, count_if=is_billed, fallback_limits=STRANGERS, name="plan"),
    ]


def make_app(
    limiter: Limiter,
    customers: Customers,
    operator_token: str,
    *,
    proxies: Sequence[str] = (),
    render: Render = render_report,
) -> FastAPI:
    """Return the API.

    Args:
        limiter: Counts the calls.
        customers: The database.
        operator_token: The token of operators, shown as ``Authorization: Bearer``.
        proxies: The networks of proxies that may name the client.
        render: Makes a report; raises `RenderError` where it cannot.
    """
    app = FastAPI(title="SaaS")
    app.include_router(calls(limiter, customers, render))
    app.include_router(operators(limiter, customers, operator_token))
    client = client_ip(trusted=proxies)
    app.add_middleware(
        RateLimitMiddleware, limiter=limiter, client=client, rules=plan_rules(customers), on_refused=refused
    )
    # Added last, so it stands outside: it knows addresses alone, and whom it refuses never gets the database asked.
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        client=client,
        rules=[Rule("*", "600/minute", name="address")],
        bans=BanPolicy("20/10m", "1h", signals={401: 1}, name="guessing"),
        on_refused=refused,
    )
    return app
