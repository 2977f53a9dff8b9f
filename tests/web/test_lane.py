"""The way of a request is the drawing in CONTRIBUTING.md: its names exist, and requests pass them in its order."""

import re
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter, Networks, RateLimitMiddleware, Rule

from ..asgi import hello, scope_of, send_scope

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
DRAWN = re.findall(r"^(\w+)\.(\w+) +(\w+)\.py\b", PAGE.read_text("utf-8"), re.MULTILINE)
NAMES = [f"{kind}.{method}" for kind, method, _ in DRAWN]


@pytest.mark.parametrize(("kind", "method", "file"), DRAWN)
def test_every_name_of_the_drawing_is_in_its_file(kind: str, method: str, file: str) -> None:
    drawn = getattr(import_module(f"slidegate.web.{file}"), kind)
    assert callable(getattr(drawn, method))
    assert drawn.__module__ == f"slidegate.web.{file}"


async def passed(app: Any, **scope: Any) -> list[str]:
    """Send a request; return the functions of the drawing that it passes, in order."""
    found: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        # From Python 3.14 on, a coroutine is called again for each time that it is awaited.
        if event == "call" and code.co_qualname in NAMES and "slidegate" in code.co_filename:
            found.append(code.co_qualname)

    sys.setprofile(note)
    try:
        await send_scope(app, scope_of(**scope))
    finally:
        sys.setprofile(None)
    return [name for name, _ in groupby(found)]


@pytest.mark.parametrize(("key", "left_out"), [(None, ()), (lambda request: "everyone", ("Plan.checks",))])
async def test_requests_pass_the_functions_of_the_drawing_in_its_order(key: Any, left_out: tuple[str, ...]) -> None:
    app = RateLimitMiddleware(
        hello,
        limiter=Limiter(observers=[lambda event: None]),
        rules=[
            Rule("*", "1/hour", when=lambda request: True, concurrency=4, key=key, name="api"),
            Rule("*", "9/hour", shadow=True, name="dry"),
        ],
        bans=BanPolicy("9/hour", signals={"/.env": 1, "refused": 1}),
        blocklist=Networks(["192.0.2.99"]),
    )
    way = [name for name in NAMES if name not in left_out]
    admitted, refused, both = map(way.index, ("Counting.observe", "Refusals.refuse", "Visit.end"))
    assert await passed(app, path="/.env") == way[:refused] + way[both:]
    assert await passed(app, path="/.env") == way[:admitted] + way[refused:]


async def test_what_is_not_configured_has_no_part_in_the_way() -> None:
    app = RateLimitMiddleware(hello, limits="1/hour")
    who = ["Clients.of", "Visit.__init__", "Plan.checks"]
    for _ in range(1_001):  # the first ones are checked
        await send_scope(app, scope_of(client=("192.0.2.1", 1)))
    assert await passed(app) == [*who, "Visit.send"]
    assert await passed(app) == [*who, "Refusals.refuse", "Refusals.answer"]
