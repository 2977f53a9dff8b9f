"""A site that shuts out scanners and guessers of passwords; docs/guides/bans.md tells where the numbers come from.

Serve it on its own with ``uvicorn examples.bans.app:app``.
"""

from __future__ import annotations

from secrets import compare_digest

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule, client_ip, strike

PASSWORD = "correct horse battery staple"

network = client_ip(ipv4_prefix=24, ipv6_prefix=56)

RULES = [
    Rule("/login", "5/minute", methods=["POST"], name="login"),
    # Four addresses of one network, each slower than that, are faster together than any honest network is.
    Rule("/login", "30/hour", methods=["POST"], key=network, name="login-network"),
    Rule("*", "600/minute", name="all"),
]

BANS = [
    BanPolicy(
        name="scanning",
        after="20/10m",
        duration="1h",
        factor=4,
        longest="7d",
        signals={
            # Not "4xx": 408 and 499 say that a connection was slow, and 429 that a limit has done its work.
            **dict.fromkeys((400, 403, 404, 405), 1),
            # Now and then a client asks for one of these and does nothing else that is odd, so it takes four to ban.
            **dict.fromkeys(("/.env", "/.git/config", "/wp-login.php", "/xmlrpc.php", "malformed"), 5),
            **dict.fromkeys(("/.aws/credentials", "/phpinfo.php"), "ban"),
        },
        prefix_after="3/1d",
    ),
    BanPolicy(name="guessing", after="20/1h", duration="1h", signals={401: 1}, key=network),
]


def guarded(site: ASGIApp, limiter: Limiter) -> RateLimitMiddleware:
    """Put the gate in front of a site; `limiter` counts for it."""
    return RateLimitMiddleware(site, limiter=limiter, rules=RULES, bans=BANS)


async def home(request: Request) -> PlainTextResponse:
    """Greet."""
    return PlainTextResponse("hello")


async def login(request: Request) -> PlainTextResponse:
    """Check a password. The answer to a wrong one is an ordinary page, so the gate has to be told."""
    if compare_digest(request.query_params.get("password", "").encode(), PASSWORD.encode()):
        return PlainTextResponse("welcome")
    await strike(request, reason="wrong password", policy="guessing")
    return PlainTextResponse("try again")


site = Starlette(routes=[Route("/", home), Route("/login", login, methods=["POST"])])
app = guarded(site, Limiter())
