"""An API with plans for its customers, and the admin API for its operators.

    SLIDEGATE_TOKEN=$(python3 -c "import secrets; print(secrets.token_urlsafe(32))")
    uvicorn --factory examples.admin.app:make_app

* Operators ask below `/admin`, with the token: see `docs/guides/admin.md`.
* A support desk that may only look has a token of its own, in `SLIDEGATE_READ_TOKEN`.
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule, header
from slidegate.admin import AdminRoutes

PLANS = {"free-key": "5/minute; 100/day", "pro-key": "60/minute"}
"""Stands for the table of customers."""


def limits_of(request: HTTPConnection) -> str:
    """Return the limits of whoever is calling."""
    return PLANS.get(request.headers.get("X-API-Key", ""), "2/minute")


def make_app(limiter: Limiter | None = None, token: str | None = None, read_token: str | None = None) -> FastAPI:
    """Return the application.

    Args:
        limiter: Where it counts; by default `SLIDEGATE_STORE` says where, else in memory.
        token: The token of operators; by default `SLIDEGATE_TOKEN`.
        read_token: The token of those who may look; by default `SLIDEGATE_READ_TOKEN`, if there is one.
    """
    limiter = limiter or Limiter.from_url(os.environ.get("SLIDEGATE_STORE", "memory://"))
    app = FastAPI()
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        rules=[
            Rule("/items/{number}", limits_of, key=header("X-API-Key"), name="plan"),
            Rule("*", "30/minute", action="shadow", name="stricter"),
            Rule("*", "120/minute", name="address"),
        ],
        bans=BanPolicy("20/10m", "1h"),
    )

    @app.get("/items/{number}")
    async def item(number: int) -> dict[str, int]:
        return {"item": number}

    app.mount(
        "/admin",
        AdminRoutes(
            limiter,
            token=token or os.environ["SLIDEGATE_TOKEN"],
            read_token=read_token or os.environ.get("SLIDEGATE_READ_TOKEN"),
        ),
    )
    return app
