"""The work for one request does not grow with its path, whatever the rules and the routes are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, RateLimitMiddleware, Rule

from ..asgi import PEER, call, page, scope_of, send_scope
from .test_paths import PLENTY, template

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 300
"""How long what must not hang may take on a busy machine; it takes seconds."""


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count lines of Python that run, each time round a loop anew, and calls of functions, those of C too."""
    ran = [0]

    def trace(frame: object, event: str, argument: object) -> Any:
        ran[0] += 1
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


async def steps(app: Any, path: str) -> int:
    """Return how much runs for one request with a path that was never seen."""
    scope = scope_of(path, raw_path=b"/")
    with counted() as ran:
        await send_scope(app, scope)
    return ran[0]


class Silent:
    """Shows routes, and answers at once: what is counted is the middleware alone."""

    def __init__(self) -> None:
        self.routes = [
            Route("/a/{x}", page),
            Mount("/v1", routes=[Route("/{x:int}_{y:int}", page)]),
            Route("/{x}", page),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


LONG = {
    "short segments": "/a",
    "slashes": "//",
    "dots": "/./a",
    "two dots": "/a/..",
    "line breaks": "/a\n",
    "parameters": "/a;b",
    "text": "a",
}
RULES = [Rule("".join(f"/{{x{m}}}" for m in range(n)) + "/a", PLENTY, name=f"r{n}") for n in range(1, 12)]
RULES += [Rule("/v1/{rest:path}", PLENTY, name="rest"), Rule("/{a:int}_{b:int}", PLENTY, name="two")]
OPTIONS: dict[str, dict[str, Any]] = {
    "limits": {"limits": PLENTY},
    "rules": {"rules": [Rule("/v1/{x}", exempt=True), *RULES]},
    "default_limits": {"default_limits": PLENTY},
}


def long(part: str, length: int, number: int) -> str:
    """Return a path of some length that was not asked for before."""
    return f"/{number}{part * (length // len(part))}"[:length]


async def fewest(app: Any, part: str, length: int) -> int:
    """Return the least that runs for some requests: now and then one sweeps the store, or logs."""
    return min([await steps(app, long(part, length, number)) for number in range(10, 14)])


@pytest.mark.interpreted("what compiled functions do is not seen")
@pytest.mark.parametrize(("length", "options", "part"), [*product((2_048, 60_000), OPTIONS, LONG)])
async def test_a_long_path_costs_hardly_more_than_a_short_one(length: int, options: str, part: str) -> None:
    middleware = RateLimitMiddleware(Silent(), **OPTIONS[options])
    usual = await fewest(middleware, "/a", 20)
    # Up to 2,048 characters a path may be taken apart, once or twice; of longer ones not even that is done.
    apart = 2 * length if length <= 2_048 else 100
    assert await fewest(middleware, LONG[part], length) <= 4 * usual + apart


@pytest.mark.interpreted("what compiled functions do is not seen")
async def test_a_long_path_of_a_banned_client_costs_hardly_more_than_a_short_one() -> None:
    limiter = Limiter()
    await limiter.ban(PEER, "1h")
    middleware = RateLimitMiddleware(Silent(), rules=RULES, limiter=limiter)
    usual = await fewest(middleware, "/a", 20)
    assert await fewest(middleware, "/a", 60_000) <= 4 * usual + 100
    assert (await call(middleware, long("/a", 60_000, 9), raw_path=b"/")).status == 403


TEXTS = ["1", "1_", "a", "5e", "1.", "inf", "x5-", "//", "/./", "/..", "1/"]


async def dear(seed: int) -> list[str]:
    """Return the long texts that random templates take more for than one pass over the text."""
    random = Random(seed)
    written = template(random, 4).replace(".+", ".")
    middleware = RateLimitMiddleware(Silent(), rules=[Rule(written, PLENTY), Rule(f"{written}/end", exempt=True)])
    usual = await fewest(middleware, "/a", 20)
    found = []
    for part in TEXTS:
        most = await fewest(middleware, part, 2_048)
        found += [f"seed {seed}: {written!r} before {part!r}: {most}, not {usual}"] * (most > 4 * usual + 2 * 2_048)
    return found


@pytest.mark.interpreted("what compiled functions do is not seen")
async def test_two_thousand_signs_are_passed_over_once_or_twice_for_any_template() -> None:
    assert [line for seed in range(12) for line in await dear(seed)] == []


MATCHING = """
import sys
from random import Random

import anyio

from slidegate import RateLimitMiddleware, Rule
from tests.asgi import call, hello
from tests.web.test_paths import LITERALS, PLENTY, TEXTS, template

PARTS = ["1", "1_", "_", "-", "a", "a.", "5e", "0x", ".", "1.", "inf", " ", "11-", "+", "00_"]


async def main() -> None:
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        random = Random(seed)
        written = template(random, 4).replace('.+', '.')
        app = RateLimitMiddleware(hello, rules=[Rule(written, PLENTY), Rule(written + "/end", exempt=True)])
        count = written.count("/")
        for _ in range(4):
            part = random.choice([*PARTS, *(one for one in LITERALS if one)])
            ends = random.choices(["", "!", "5", "_"], k=count)
            segments = [part * (2_048 // count // len(part) - 1) + end for end in ends]
            await call(app, ("/" + "/".join(segments))[:2_048], raw_path=b"/")


anyio.run(main)
"""


def test_no_text_of_two_thousand_signs_takes_a_template_for_ever() -> None:
    # A process can be ended while an expression goes back and forth. It takes a second or two.
    ran = subprocess.run(
        [sys.executable, "-c", MATCHING, "0", "60"], cwd=ROOT, timeout=BOUND_S, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
