"""A middleware in the stack of an application: agents that replace its parts, and stacks that are built again."""

import copy
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route, Router
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


# -- agents ------------------------------------------------------------------------------------------------------------


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


def test_sentry_traces_a_middleware_with_options_and_one_of_a_file() -> None:
    ended = subprocess.run([sys.executable, "-c", SENTRY], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ended.stdout == "[200, 200, 429]\n" * 2, ended.stderr


# -- stacks that are built again ---------------------------------------------------------------------------------------


def forgets(app: Any) -> None:
    app.middleware_stack = None


def builds(app: Any) -> None:
    app.middleware_stack = app.build_middleware_stack()


def instruments(app: Any) -> None:
    """Build the stack anew around the middlewares of now, and an outer one, as agents do."""
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
@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@pytest.mark.parametrize("kind", ["own", "memory", "lmdb"])
async def test_counts_go_on_where_a_stack_is_built_again(
    again: Any, lines: str, framework: Any, kind: str, request: pytest.FixtureRequest
) -> None:
    write("3/hour")
    options = {} if kind == "own" else {"limiter": Limiter.from_url(request.getfixturevalue("url"))}
    limited = RateLimit("3/hour")(page) if lines == "an endpoint" else page
    app = framework(routes=[Route("/", limited)])
    for middleware, given in LINES[lines]:
        app.add_middleware(middleware, **given, **options)
    found = []
    for _ in range(4):  # some frameworks build their stacks for each route, which a finding tells of from the third on
        found += await statuses(app, 1)
        again(app)
    assert found == [200, 200, 200, 429]
    kept = vars(app.router)["_slidegate_built"].now
    assert [finding for made in kept for finding in made.middleware.findings if finding.code == "SG131"] == []
    assert len(kept) == len(LINES[lines])


@pytest.mark.parametrize("again", AGAIN)
async def test_two_equal_lines_are_two_middlewares_in_each_stack(again: Any) -> None:
    limiter, app = Limiter(), Starlette(routes=[Route("/", page)])
    for _ in range(2):
        app.add_middleware(RateLimitMiddleware, limits="4/hour", limiter=limiter)
    before = await statuses(app, 3)
    again(app)
    assert before + await statuses(app, 2) == [200, 200, 200, 200, 429]
    assert len(limiter.middlewares) == 2


async def test_a_file_that_changes_is_followed_behind_a_stack_that_was_built_again() -> None:
    app = Starlette(routes=[Route("/", page)])
    app.add_middleware(RateLimitMiddleware.from_file, path="slidegate.toml")
    assert await statuses(app, 1) == [200]
    before = vars(app.router)["_slidegate_built"].now[0].middleware
    forgets(app)
    assert await statuses(app, 1) == [200]
    write("5/hour")
    _, apply = before.load()
    apply()
    assert before.app.app is before._below
    assert await statuses(app, 4) == [200, 200, 200, 429]


async def test_what_is_not_the_same_line_of_the_same_application_counts_apart() -> None:
    limits, shared = "1/hour", Router([Route("/", page)])
    for _ in range(3):  # applications of a factory
        app = Starlette(routes=[Route("/", page)])
        app.add_middleware(RateLimitMiddleware, limits=limits)
        assert await statuses(app, 2) == [200, 429]
    app.user_middleware[:] = [Middleware(RateLimitMiddleware, limits=limits, headers="legacy")]
    forgets(app)
    assert await statuses(app, 2) == [200, 429]
    for _ in range(2):  # without a stack, each is one of its own
        assert await statuses(RateLimitMiddleware(shared, limits=limits), 2) == [200, 429]
        assert await statuses(RateLimitMiddleware(app, limits="9/hour"), 2) == [429, 429]
    copied = copy.copy(app.router)
    assert "_slidegate_built" in vars(copied)


def test_what_was_built_before_is_not_kept() -> None:
    """Where an application gets other limits again and again, as in its tests."""
    app = Starlette()
    references = []
    for _ in range(5):
        app.user_middleware[:] = [Middleware(RateLimitMiddleware, limiter=Limiter())]
        references.append(weakref.ref(app.build_middleware_stack().app))  # type: ignore[attr-defined]
    gc.collect()
    assert [reference() is None for reference in references] == [True, True, True, False, False]


def test_a_line_with_an_error_is_tried_again() -> None:
    app = Starlette()
    app.add_middleware(RateLimitMiddleware.from_file, path="later.toml")
    for is_there in (False, True):
        stack: Any = app.build_middleware_stack()
        assert (stack.app.error is None) is is_there
        write("3/hour", "later.toml")
