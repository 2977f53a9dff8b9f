"""A small site with articles, a search, a login and an export, limited per route.

Serve it on its own with ``uvicorn examples.demo.app:app``; /docs and /openapi.json show the limits of each operation.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from fastapi.security import HTTPBasic, HTTPBasicCredentials

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, client_ip, everyone, header
from slidegate.dashboard import Dashboard
from slidegate.openapi import document_limits

ARTICLES = {
    "sliding-windows": "Count what came in during the last minute, not during this one.",
    "token-buckets": "A bucket fills at a steady rate and every request takes from it.",
    "retry-after": "A refusal that says when to retry saves a round trip.",
    "fair-queues": "One busy client should not make the others wait.",
    "clock-steps": "Clocks are set back, and code that measures time must handle it.",
}
PASSWORDS = {"editor": "correct horse battery staple"}
DASHBOARD = "/slidegate"
RULES = [
    Rule(["/health", f"{DASHBOARD}/{{rest:path}}"], exempt=True),
    Rule("*", "2000/second", key=everyone, name="service"),
    # An address gets five attempts a minute, and its whole network sixty an hour, because slow guessing from several
    # addresses stays below the limit of each address.
    Rule("/login", "5/minute; 20/hour", methods=["POST"], name="login"),
    Rule("/login", "60/hour", methods=["POST"], key=client_ip(ipv4_prefix=24, ipv6_prefix=48), name="login_network"),
    # Programs may be faster than people, so the last rule does not apply to them.
    Rule("/api/{rest:path}", "100/10s", key=header("X-API-Key"), name="api", final=True),
    Rule("/export", "10/hour", cost=lambda request: 5 if request.query_params.get("full") else 1, name="export"),
    # A page with its resources is about thirty requests at the same time; people stay below about a hundred a minute.
    Rule("*", "60/5s; 240/minute", name="visitor"),
]
# Only scanners request four of these within ten minutes.
BANS = BanPolicy(
    name="scanning",
    after="20/10m",
    duration="1h",
    signals=dict.fromkeys(("/.env", "/.git/config", "/wp-login.php", "/xmlrpc.php", "/phpinfo.php"), 5),
)

router = APIRouter()


@router.get("/")
@router.get("/health")
async def home() -> list[str]:
    """List the articles."""
    return list(ARTICLES)


@router.get("/articles/{slug}")
async def article(slug: str) -> str:
    """Show one article."""
    if slug not in ARTICLES:
        raise HTTPException(404, "no such article")
    return ARTICLES[slug]


@router.get("/api/search")
async def search(q: str = "") -> list[str]:
    """Return the articles with a word in their name or text."""
    return [slug for slug, text in ARTICLES.items() if q.casefold() in f"{slug} {text}".casefold()]


@router.post("/login")
async def login(given: Annotated[HTTPBasicCredentials, Depends(HTTPBasic(realm="demo"))]) -> dict[str, str]:
    """Check a name and a password."""
    if not secrets.compare_digest(given.password.encode(), PASSWORDS.get(given.username, "").encode() or b"\0"):
        raise HTTPException(401, "wrong name or password", {"WWW-Authenticate": 'Basic realm="demo"'})
    return {"user": given.username}


@router.get("/export")
async def export(full: bool = False) -> Response:
    """Return the articles as CSV; ``?full=1`` includes their text, and costs five times as much."""
    lines = [f'{slug},"{text}"' if full else slug for slug, text in ARTICLES.items()]
    return Response("\n".join(lines), media_type="text/csv")


def make_app(limiter: Limiter, trusted: Sequence[str] = (), token: str | None = None) -> FastAPI:
    """Return the site.

    Args:
        limiter: The limiter of the site.
        trusted: Networks of proxies whose X-Forwarded-For is trusted.
        token: The token of the dashboard; None for a site without one.
    """
    app = FastAPI(title="slidegate demo", swagger_ui_parameters={"showExtensions": True})  # in /docs
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        client=client_ip(trusted=trusted, ipv6_prefix=64),
        rules=RULES,
        bans=BANS,
        blocklist=Networks.from_file(Path(__file__).with_name("blocked.netset")),
    )
    app.include_router(router)
    if token is not None:
        app.mount(DASHBOARD, Dashboard(limiter, token=token))
    document_limits(app)
    return app


app = make_app(Limiter(MemoryStore()))
