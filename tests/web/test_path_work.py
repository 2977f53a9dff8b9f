"""The work for one request grows out of proportion neither with its texts nor with the number of routes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Host, Mount, Route
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, Rule

from ..asgi import hello, page, scope_of, send_scope, statuses
from .route_trees import PLENTY

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 300
"""How long what must not hang may take on a busy machine; it takes seconds."""
MOST_STEPS = 5_000_000
"""Enough for anything here."""


class EndlessError(BaseException):
    """Is not caught on the way."""


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count lines of Python that run, each time round a loop anew, and calls of C; end what would never end."""
    ran = [0]

    def trace(frame: object, event: str, argument: object) -> Any:
        ran[0] += 1
        if ran[0] > MOST_STEPS:
            raise EndlessError
        return trace

    def profile(frame: object, event: str, argument: object) -> None:
        ran[0] += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        yield ran
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


async def steps(app: Any, path: str) -> tuple[int, int]:
    """Return how much runs for one request with a path that was never seen, and the status of its answer."""
    scope = scope_of(path, raw_path=b"/")
    with counted() as ran:
        answer = await send_scope(app, scope)
    return ran[0], answer.status


class Silent(FastAPI):
    """Shows its routes, and answers at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


ROUTES = [Route("/a/{x}", page), Mount("/v1", routes=[Route("/{x:int}_{y:int}", page)]), Route("/{x}", page)]
LONG = ["/a", "//", "/./a", "/a/..", "/a\n", "/a;b", "a"]
RULES = [Rule("".join(f"/{{x{m}}}" for m in range(n)) + "/a", PLENTY, name=f"r{n}") for n in range(1, 12)]
RULES += [Rule("/v1/{rest:path}", PLENTY, name="rest"), Rule("/{a:int}_{b:int}", PLENTY, name="two")]
OPTIONS: dict[str, dict[str, Any]] = {
    "limits": {"limits": PLENTY},
    "rules": {"rules": [Rule("/v1/{x}", exempt=True), *RULES]},
    "default_limits": {"default_limits": PLENTY},
}


async def fewest(app: Any, part: str, length: int) -> int:
    """Return the least that runs for some paths that were not asked for before: now and then one sweeps, or logs."""
    paths = [f"/{number}{part * (length // len(part))}"[:length] for number in range(10, 14)]
    return min([(await steps(app, path))[0] for path in paths])


@pytest.mark.interpreted("what compiled functions do is not seen")
@pytest.mark.parametrize(("length", "options", "part"), [*product((2_048, 60_000), OPTIONS, LONG)])
async def test_a_long_path_costs_hardly_more_than_a_short_one(length: int, options: str, part: str) -> None:
    middleware = RateLimitMiddleware(Silent(routes=ROUTES), **OPTIONS[options])
    usual = await fewest(middleware, "/a", 20)
    # Up to 2,048 characters a path may be taken apart, once or twice; of longer ones not even that is done.
    apart = 2 * length if length <= 2_048 else 100
    assert await fewest(middleware, part, length) <= 4 * usual + apart


MATCHING = """
import sys
from itertools import count
from random import Random

import anyio

from slidegate import RateLimitMiddleware, Rule
from tests.asgi import call, hello
from tests.web.route_trees import LITERALS, PLENTY, named, template

PARTS = ["1", "1_", "_", "-", "a", "a.", "5e", "0x", ".", "1.", "inf", " ", "11-", "+", "00_", *filter(None, LITERALS)]


async def main() -> None:
    for seed in range(60):
        random = Random(seed)
        written = named(template(random, 4), count())
        app = RateLimitMiddleware(hello, rules=[Rule(written, PLENTY), Rule(written + "/end", exempt=True)])
        slashes = written.count("/")
        for _ in range(4):
            part = random.choice(PARTS)
            segments = [part * (2_048 // slashes // len(part) - 1) + end for end in random.choices("!5_", k=slashes)]
            await call(app, ("/" + "/".join(segments))[:2_048], raw_path=b"/")


anyio.run(main)
"""


READING = """
from itertools import product

from slidegate import Limiter, client_ip, cookie, header, mcp_tool, query
from tests.asgi import scope_of

PARTS = ['\\\\"', '"', "\\\\", ",", ";", "=", " ", "a", "&", "%2", ":", 'for="']
KEYS = [header("Authorization"), header("Host"), cookie("a"), query("a"), mcp_tool("a", validated=True)]
KEYS += [client_ip(1), client_ip(["203.0.113.0/24"], header="forwarded")]
NAMES = ["authorization", "host", "cookie", "mcp-name", "x-forwarded-for", "forwarded"]

for part, begin in product(PARTS, ["a", 'a="', "Basic "]):
    value = f'{begin}{part * (400_000 // len(part))}"'.encode()
    headers = [*[(name.encode(), value) for name in NAMES], (b"mcp-protocol-version", b"2026-07-28")]
    scope = scope_of(method="POST", query_string=value, headers=[*headers, (b"mcp-method", b"tools/call")])
    for key in KEYS:
        key.find(scope, Limiter(), "client")
"""


@pytest.mark.parametrize("program", [MATCHING, READING], ids=["templates", "keys"])
def test_no_text_takes_a_template_or_a_key_for_ever(program: str) -> None:
    # A process can be ended while an expression goes back and forth. It takes a second or two.
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=BOUND_S, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def shops(count: int) -> list[BaseRoute]:
    return [APIRoute(f"/shop{n}/{{x}}", page) for n in range(count)]


@cache
def site(kind: str, count: int) -> Silent:
    if kind == "plain":
        return Silent(routes=shops(count))
    if kind == "mounted":
        half = shops(count // 2)
        return Silent(routes=[*half, Mount("/v1", routes=half), Mount("/", app=hello)])
    app = Silent()
    app.include_router(APIRouter(routes=shops(count)))
    return app


PATHS = ("/shop3/{}", "/nope/{}", "/shop3/{}\n", "/shop3/{}" + "/../x" * 700, "/{}" + "/a;b/." * 600)
TWO = [Rule("/{x}/5", "9/hour"), Rule("/{x}/{rest:path}", "9/hour")]


@pytest.mark.interpreted("what compiled functions do is not seen")
@pytest.mark.parametrize("kind", ["plain", "mounted", "included"])
@pytest.mark.parametrize("options", [{"limits": "9/hour"}, {"rules": TWO}], ids=str)
async def test_a_path_never_seen_costs_as_much_with_a_thousand_routes_as_with_ten(options: Any, kind: str) -> None:
    least: list[list[int]] = []
    for count in (10, 1_000):
        middleware = RateLimitMiddleware(site(kind, count), limiter=Limiter(observers=[lambda event: None]), **options)
        first = await statuses(middleware, 12, "/shop3//5", client=("192.0.2.1", 1))
        assert first == [200] * 9 + [429] * 3
        seen = [[await steps(middleware, path.format(number)) for number in range(12)] for path in PATHS]
        assert {status for each in seen for _, status in each} == {200, 429}
        # The least of them: now and then a request does what time asks for, such as sweeping the store.
        least.append([min(ran for ran, _ in each) for each in seen])
    for path, few, many in zip(PATHS, *least, strict=True):
        assert many <= 1.2 * few, path[:40]


# -- an application that is mounted in itself, or seems to wrap others without end ------------------------------------


def circle(framework: Any, *prefixes: str) -> Any:
    """Return an application that is mounted in itself at each of some places."""
    app = framework()
    app.router.routes.append(Route("/x", RateLimit("900/minute")(page)))
    app.router.routes += [Mount(prefix, app) for prefix in prefixes]
    app.router.routes.append(Host("{name}.example.org", app))
    return app


class Endless(Silent):
    """Seems to wrap another, and so on: as a `Mock` does."""

    app = property(lambda self: type(self)())


class Knot(Silent):
    app = property(lambda self: self)


CIRCLES = [circle(framework, *at) for framework in (FastAPI, Silent) for at in (("/a", "/b"), ("/{a}", "/{b}"))]
CIRCLES += [circle(Silent, "", ""), Endless(), Knot()]  # the routers of others never end there


@pytest.mark.interpreted("the calls of compiled functions are not seen")
@pytest.mark.parametrize("app", CIRCLES)
@pytest.mark.parametrize(
    "options",
    [
        {"limits": "2/minute"},
        {"rules": [Rule("/a/{rest:path}", "2/minute"), Rule("/x", "90/minute")]},
        {"default_limits": "2/minute"},
        {"rules": [Rule("/{rest:path}", "2/minute")], "bans": BanPolicy(signals={"/.env": "ban"})},
    ],
)
async def test_an_application_that_goes_in_circles_is_served_and_counted_and_no_way_is_followed_twice(
    app: Any, options: Any
) -> None:
    with counted():
        path = "/a/b" * 40 if isinstance(app, Silent) else "/a/b/x"
        assert await statuses(RateLimitMiddleware(app, **options), 3, path) == [200, 200, 429]
