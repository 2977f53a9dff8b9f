"""Flask-Limiter: default limits over a few endpoints, in memory."""

from __future__ import annotations

from typing import Any

import flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

from slidegate.testing import FakeClock

from ..asking import CLIENT, Answer


class Wsgi:
    """A Flask application.

    Args:
        app: The application with its limits.
    """

    def __init__(self, app: flask.Flask) -> None:
        self.visitor = app.test_client()

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now."""
        answer = self.visitor.get(path, environ_base={"REMOTE_ADDR": client}, headers=headers)
        seconds = answer.headers.get("Retry-After")
        return Answer(answer.status_code, None if seconds is None else float(seconds))


def app_of(*limits: str, **options: Any) -> Wsgi:
    """Return an application with default limits."""
    app = flask.Flask(__name__)
    options = {"storage_uri": "memory://", "headers_enabled": True, **options}
    Limiter(get_remote_address, app=app, default_limits=list(limits), **options)
    for path in ("/", "/a", "/b", "/c"):
        app.add_url_rule(path, path.replace("/", "at "), lambda: "hi")
    return Wsgi(app)


def one(clock: FakeClock) -> Wsgi:
    """Return one limit."""
    return app_of("100/minute")


def two_limits(clock: FakeClock) -> Wsgi:
    """Return two limits, the longer one first."""
    return app_of("50/hour", "5/minute")
