"""A middleware in the stack of an application: agents that replace its parts, and stacks that are built again."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import Limiter, RateLimit, RateLimitMiddleware, Rule

from ..asgi import page, statuses

BOUND_S = 60


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("2/hour")


def write(limits: str, path: str = "slidegate.toml") -> None:
    Path(path).write_text(f'limits = "{limits}"\n', "utf-8")


SENTRY = """
import sentry_sdk
sentry_sdk.init("http://key@127.0.0.1:9/1", traces_sample_rate=1.0, transport=lambda envelope: None)
from fastapi import FastAPI
from starlette.testclient import TestClient
from slidegate import RateLimitMiddleware
for limits in ({"limits": "2/hour"}, {"path": "slidegate.toml"}):
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware.from_file if "path" in limits else RateLimitMiddleware, **limits)
    app.get("/")(lambda: "page")
    with TestClient(app) as client:
        print([client.get("/").status_code for _ in range(3)])
"""


@pytest.mark.all
def test_sentry_traces_a_middleware_with_options_and_one_of_a_file() -> None:
    ended = subprocess.run([sys.executable, "-c", SENTRY], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ended.stdout == "[200, 200, 429]\n" * 2, ended.stderr


# -- stacks that are built again ---------------------------------------------------------------------------------------


def forgets(app: Any) -> None:
    app.middleware_stack = None


def builds(app: Any) -> None:
    app.middleware_stack = app.build_middleware_stack()


def instruments(app: Any) -> None:
    """Build the stack again around the current middlewares, and an outer one, as agents do."""
    original = app.build_middleware_stack
    app.build_middleware_stack = lambda: Outer(original())
    app.middleware_stack = app.build_middleware_stack()
    app.build_middleware_stack = original


def adds(app: Any) -> None:
    app.user_middleware.insert(0, Middleware(Outer))
    app.user_middleware.append(Middleware(Outer))
    app.middleware_stack = None


class Outer:
    """A middleware of somebody's own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Own(RateLimitMiddleware):
    """A middleware with a constructor, which gives its own something around the application."""

    def __init__(self, app: ASGIApp, *, limits: str, **options: Any) -> None:
        super().__init__(Outer(app), rules=[Rule("*", limits)], **options)


AGAIN = [forgets, builds, instruments, adds]
LINES: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "limits": [(RateLimitMiddleware, {"limits": "3/hour"})],
    "a name": [(RateLimitMiddleware, {"rules": [Rule("*", "3/hour", name="all")]})],
    "default limits": [(RateLimitMiddleware, {"default_limits": "3/hour"})],
    "an endpoint": [(RateLimitMiddleware, {})],
    "a subclass": [(Own, {"limits": "3/hour"})],
    "a file": [(RateLimitMiddleware.from_file, {"path": "slidegate.toml"})],
    "another beside it": [
        (RateLimitMiddleware, {"limits": "3/hour"}),
        (RateLimitMiddleware, {"rules": [Rule("/none", "1/hour")], "name": "other"}),
    ],
}
"""The lines with which an application adds limits: each lets three of four requests pass."""


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_the_counts_of_a_limiter_go_on_where_a_stack_is_built_again(
    again: Any, lines: str, kind: str, request: pytest.FixtureRequest
) -> None:
    write("3/hour")
    limiter = Limiter.from_url(request.getfixturevalue("url"))
    app = FastAPI(routes=[Route("/", RateLimit("3/hour")(page) if lines == "an endpoint" else page)])
    for middleware, given in LINES[lines]:
        app.add_middleware(middleware, **given, limiter=limiter)
    found, stacks = [], []  # an agent may keep those of before
    for _ in range(4):
        found += await statuses(app, 1)
        stacks.append(app.middleware_stack)
        again(app)
    assert found == [200, 200, 200, 429]


def test_a_line_with_an_error_is_tried_again() -> None:
    app = Starlette()
    app.add_middleware(RateLimitMiddleware.from_file, path="later.toml")
    for is_there in (False, True):
        stack: Any = app.build_middleware_stack()
        assert (stack.app.error is None) is is_there
        write("3/hour", "later.toml")
