"""A small site with articles, a search API, a login, an export and an admin page, limited per route.

Serve it on its own with ``uvicorn examples.demo.app:app``.
"""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.security import HTTPBasic, HTTPBasicCredentials

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, client_ip, everyone, header
from slidegate.dashboard import Dashboard

ARTICLES = {
    "sliding-windows": "Count what came in during the last minute, not during this one.",
    "token-buckets": "A bucket fills at a steady rate and every request takes from it.",
    "retry-after": "A refusal that says when to retry saves a round trip.",
    "fair-queues": "One busy client should not make the others wait.",
    "clock-steps": "Clocks are set back, and code that measures time must handle it.",
    "ring-buffers": "A fixed array and an index make a queue that never grows.",
    "backpressure": "Say no early, while saying no is still cheap.",
    "idempotency": "Doing a thing twice should be doing it once.",
    "cold-starts": "The first request pays for everything that was put off.",
    "log-rotation": "Files end; what reads them has to notice.",
}
STATIC = {
    "site.css": ("text/css", "body { max-width: 40rem; margin: 2rem auto; font-family: sans-serif }"),
    "site.js": ("text/javascript", "document.documentElement.classList.add('ready')"),
}
PASSWORDS = {"editor": "correct horse battery staple"}

DASHBOARD = "/slidegate"
RULES = [
    Rule("/health", exempt=True),
    Rule("*", "2000/second", key=everyone, name="service"),
    # An address gets five attempts a minute, and its whole network sixty an hour, because slow guessing from several
    # addresses stays below the limit of each address.
    Rule("/login", "5/minute; 20/hour", methods=["POST"], name="login"),
    Rule("/login", "60/hour", methods=["POST"], key=client_ip(ipv4_prefix=24, ipv6_prefix=48), name="login-network"),
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
Credentials = Annotated[HTTPBasicCredentials, Depends(HTTPBasic(realm="demo"))]


def signed_in(credentials: Credentials) -> str:
    """Return the user's name, or respond with 401."""
    expected = PASSWORDS.get(credentials.username, "")
    if not expected or not secrets.compare_digest(credentials.password.encode(), expected.encode()):
        raise HTTPException(401, "wrong name or password", {"WWW-Authenticate": 'Basic realm="demo"'})
    return credentials.username


def page(title: str, body: str) -> HTMLResponse:
    """Return a page of the site."""
    head = (
        f'<title>{title}</title><link rel="stylesheet" href="/static/site.css"><script src="/static/site.js"></script>'
    )
    return HTMLResponse(f"<!doctype html><html lang=en><head>{head}</head><body><h1>{title}</h1>{body}</body></html>")


@router.get("/")
async def home() -> HTMLResponse:
    """List the articles."""
    links = "".join(f'<li><a href="/articles/{slug}">{slug}</a></li>' for slug in ARTICLES)
    return page("Notes on waiting", f"<ul>{links}</ul>")


@router.get("/articles/{slug}")
async def article(slug: str) -> HTMLResponse:
    """Show one article."""
    if slug not in ARTICLES:
        raise HTTPException(404, "no such article")
    return page(slug, f"<p>{escape(ARTICLES[slug])}</p>")


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """Return a style sheet or a script."""
    if name not in STATIC:
        raise HTTPException(404, "no such file")
    media_type, content = STATIC[name]
    return Response(content, media_type=media_type)


@router.get("/feed.xml")
async def feed() -> Response:
    """Return the articles as an Atom feed."""
    entries = "".join(
        f"<entry><title>{slug}</title><summary>{escape(text)}</summary></entry>" for slug, text in ARTICLES.items()
    )
    return Response(f'<feed xmlns="http://www.w3.org/2005/Atom">{entries}</feed>', media_type="application/atom+xml")


@router.get("/robots.txt")
async def robots() -> PlainTextResponse:
    """Tell crawlers what not to fetch."""
    return PlainTextResponse("User-agent: *\nDisallow: /admin\nDisallow: /export\n")


@router.get("/api/search")
async def search(q: str = "") -> dict[str, list[str]]:
    """Return the articles with a word in their name or text."""
    word = q.casefold()
    return {"found": [slug for slug, text in ARTICLES.items() if word in slug or word in text.casefold()]}


@router.get("/login")
async def login_form() -> HTMLResponse:
    """Explain how to log in."""
    return page("Log in", "<p>POST here with HTTP Basic credentials.</p>")


@router.post("/login")
async def login(user: Annotated[str, Depends(signed_in)]) -> dict[str, str]:
    """Check a name and a password."""
    return {"user": user}


@router.get("/export")
async def export(full: bool = False) -> Response:
    """Return the articles as CSV; ``?full=1`` includes their text, and costs five times as much."""
    text = io.StringIO()
    csv.writer(text).writerows([slug, words] if full else [slug] for slug, words in ARTICLES.items())
    return Response(text.getvalue(), media_type="text/csv")


@router.get("/admin")
async def admin(user: Annotated[str, Depends(signed_in)]) -> HTMLResponse:
    """Greet the signed-in user."""
    return page("Admin", f"<p>Hello {escape(user)}.</p>")


@router.get("/health")
async def health() -> dict[str, bool]:
    """Report that the site is up."""
    return {"ok": True}


def make_app(limiter: Limiter, trusted: Sequence[str] = (), token: str | None = None) -> FastAPI:
    """Return the site.

    Args:
        limiter: The limiter of the site.
        trusted: Networks of proxies whose X-Forwarded-For is trusted.
        token: The token of the dashboard; None for a site without one.
    """
    app = FastAPI(title="slidegate demo")
    app.add_middleware(
        RateLimitMiddleware,
        limiter=limiter,
        client=client_ip(trusted=trusted, ipv6_prefix=64),
        rules=RULES if token is None else [Rule(f"{DASHBOARD}/{{rest:path}}", exempt=True), *RULES],
        bans=BANS,
        blocklist=Networks.from_file(Path(__file__).with_name("blocked.netset")),
    )
    app.include_router(router)
    if token is not None:
        app.mount(DASHBOARD, Dashboard(limiter, token=token))
    return app


app = make_app(Limiter(MemoryStore()))
