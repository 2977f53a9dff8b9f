"""The way of a request is the drawing in CONTRIBUTING.md: its names exist, and requests pass them in its order."""

import re
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, Networks, RateLimitMiddleware, Rule

from ..asgi import hello, scope_of, send_scope

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
DRAWN = re.findall(r"^(\w+)\.(\w+) +(\w+)\.py\b", PAGE.read_text("utf-8"), re.MULTILINE)
NAMES = [f"{kind}.{method}" for kind, method, _ in DRAWN]
ADMITTED, REFUSED = NAMES.index("Counting.observe"), NAMES.index("Signals.at_refusal")
BOTH = NAMES.index("Visit.end")
DIRECT, CALLING = NAMES.index("Plan.checks"), NAMES.index("Counting.count")


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


@pytest.mark.parametrize(("key", "other"), [(None, CALLING), (lambda request: "everyone", DIRECT)])
async def test_requests_pass_the_functions_of_the_drawing_in_its_order(key: Any, other: int) -> None:
    app = RateLimitMiddleware(
        hello,
        rules=[
            Rule("*", "1/hour", when=lambda request: True, concurrency=4, key=key, name="api"),
            Rule("*", "9/hour", shadow=True, name="dry"),
        ],
        bans=BanPolicy("9/hour", signals={"/.env": 1, "refused": 1}),
        blocklist=Networks(["192.0.2.99"]),
    )
    way = [*NAMES[:other], *NAMES[other + 1 :]]
    assert await passed(app, path="/.env") == way[: REFUSED - 1] + way[BOTH - 1 :]
    assert await passed(app, path="/.env") == way[: ADMITTED - 1] + way[REFUSED - 1 :]


async def test_what_is_not_configured_has_no_part_in_the_way() -> None:
    app = RateLimitMiddleware(hello, limits="1/hour")
    who = ["Clients.of", "Visit.__init__", "Plan.checks"]
    for _ in range(1_001):  # the first ones are checked
        await send_scope(app, scope_of(client=("192.0.2.1", 1)))
    assert await passed(app) == [*who, "Visit.send", "Visit.leave"]
    answer = ["Refusals.report", "Refusals.send", "Visit.leave"]
    assert await passed(app) == [*who, *answer]
