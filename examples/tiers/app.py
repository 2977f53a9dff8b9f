"""Two routers behind one gate.

* A client without a key is anonymous and counted by address; a key has the plan that was sold with it.
* A login is counted only when the password was wrong.
* A stricter limit runs as a shadow first: it reports whom it would refuse.
* A client far above the rest is noted once, for special handling.
"""

from __future__ import annotations

import logging

from fastapi import APIRouter, FastAPI, HTTPException
from starlette.requests import HTTPConnection

from slidegate import Decision, Limiter, RateLimitMiddleware, Rule, client_ip, document_limits, header

logger = logging.getLogger("tiers")

PLANS = {"anonymous": "10/minute", "free": "60/minute; 1000/day", "pro": "600/minute", "staff": "unlimited"}
KEYS = {"free-key": "free", "pro-key": "pro", "staff-key": "staff"}
"""Stands for the table of customers; a key that is not in it is nobody's."""


def limits_of(request: HTTPConnection) -> str:
    """Return the limits of whoever is calling."""
    return PLANS[KEYS.get(request.headers.get("X-API-Key", ""), "anonymous")]


def caller(request: HTTPConnection) -> str:
    """Count a customer by plan and key; an empty answer means: by address."""
    key = request.headers.get("X-API-Key", "")
    return f"customer:{key}" if key in KEYS else ""


def note_hot(key: str, decision: Decision) -> None:
    """Take note of a client far above the rest."""
    logger.warning("hot client: %s, %s", key, decision.limit)


articles = APIRouter(prefix="/articles")
accounts = APIRouter(prefix="/accounts")


@articles.get("/{number}")
async def article(number: int) -> dict[str, int]:
    """Show an article."""
    return {"article": number}


@accounts.post("/login", responses={401: {"description": "Wrong password"}})
async def login(password: str) -> dict[str, str]:
    """Let in who knows the word."""
    if password != "open sesame":
        raise HTTPException(401, "wrong password")
    return {"welcome": "back"}


def make_app(limiter: Limiter | None = None) -> FastAPI:
    """Return the application, counting in `limiter`."""
    app = FastAPI()
    app.include_router(articles)
    app.include_router(accounts)
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter or Limiter(),
        client=client_ip(trusted=["10.0.0.0/8"]),
        rules=[
            Rule("/accounts/login", "5/minute", methods=["POST"], count_if=lambda status: status == 401, name="login"),
            Rule("/articles/{number}", limits_of, key=caller, name="plan"),
            Rule("/articles/{number}", "30/minute", key=header("X-API-Key"), action="shadow", name="stricter"),
            Rule("*", "100/5s", action="track", on_exceeded=note_hot, name="hot"),
            Rule("*", "2000/minute", name="all"),
        ],
    )
    document_limits(app)
    return app


app = make_app()
