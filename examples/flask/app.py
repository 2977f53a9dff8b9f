"""A WSGI application with limits: ``flask --app examples.flask.app run``, or ``gunicorn examples.flask.app:app``.

* Every client gets 30 requests a minute. Beyond, the answer is 429 with the seconds to wait.
* Wrong passwords are strikes; the fifth within ten minutes bans the client for an hour.
* The weather is another service's, which allows two questions a second: requests wait for their turn, a second at most.

``LIMITS`` names the store. With ``lmdb:///var/lib/app/limits`` or ``redis://localhost`` all workers count together, and
the workers of a server that forks may share this limiter.
"""

from __future__ import annotations

import os
from hmac import compare_digest

from flask import Flask, Response, abort, request
from slidegate import BanPolicy, Limiter, RateLimitExceeded

LIMITS = "30/minute"
PASSWORD = "correct horse"
GUESSES = BanPolicy("5/10m", "1h")

app = Flask(__name__)
limiter = Limiter.from_url(os.environ.get("LIMITS", "memory://"))


def client() -> str:
    """Return the address of the client. Behind a proxy, put werkzeug's ProxyFix around the application."""
    return request.remote_addr or "unknown"


def refusal(retry_after: int | None) -> Response:
    """Return the answer to a request that is refused."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Response("Too many requests.\n", 429, headers, mimetype="text/plain")


@app.before_request
def hold_to_limits() -> Response | None:
    """Refuse a client that has no room left, or is banned."""
    decision = limiter.sync.hit(client(), LIMITS, rule="every request")
    return None if decision else refusal(decision.retry_after)


@app.errorhandler(RateLimitExceeded)
def too_many(refused: RateLimitExceeded) -> Response:
    """Answer a request whose limited function was refused."""
    return refusal(refused.decision.retry_after)


@app.get("/")
def hello() -> str:
    """Greet."""
    return "Hello\n"


@app.post("/login")
def login() -> str:
    """Let the user in whose password is right."""
    if not compare_digest(request.form.get("password", ""), PASSWORD):
        limiter.sync.strike(client(), GUESSES, reason="wrong password")
        abort(401)
    return "Welcome\n"


@app.get("/weather")
def weather() -> str:
    """Say what the weather is like."""
    return ask_weather()


@limiter.limited("2/second", key="weather", wait="1s")
def ask_weather() -> str:
    """Stand for a question to another service."""
    return "Sunny\n"
