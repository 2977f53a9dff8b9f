"""The README is short, its refusal is a real one, and the list of examples is complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
AMOUNT = 100
LATER = "24s"
"""How long after 100 requests the 101st comes, so that it has to wait as long as the README says."""


async def test_the_refusal_that_it_shows_is_the_answer_of_the_gate_above_it() -> None:
    limits = re.findall(r'add_middleware\(RateLimitMiddleware, limits="([^"]+)"\)', README)
    assert limits == [f"{AMOUNT}/minute"]
    (head, body) = re.findall(r"```http\n(.*?)\n\n(.*?)```", README, re.DOTALL)[0]
    status, *fields = head.splitlines()
    clock = FakeClock()

    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", home)])
    app.add_middleware(RateLimitMiddleware, limits=limits[0], limiter=Limiter(MemoryStore(clock=clock)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app.test") as client:
        assert {(await client.get("/")).status_code for _ in range(AMOUNT)} == {200}
        clock.advance(LATER)
        answer = await client.get("/")
        assert status == f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}"
        sent = [f"{name}: {value}" for name, value in answer.headers.items() if name != "content-length"]
        assert sent == fields
        assert answer.json() == json.loads(body)
        clock.advance(f"{answer.headers['Retry-After']}s")
        assert (await client.get("/")).status_code == 200


def test_every_example_with_a_page_of_its_own_stands_in_the_list_with_its_command() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\((\w+)/README\.md\) \| .+ \| `python3 dev\.py (?:example )?(\w+)` \|$",
        (ROOT / "examples" / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    pages = {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}
    runnable = {name for name in pages if (ROOT / "examples" / name / "__main__.py").exists()}
    assert {name for name, _, _ in rows} == runnable
    assert all(len(set(row)) == 1 for row in rows)
    for name in runnable - {"demo"}:
        assert f"python3 dev.py example {name}" in (ROOT / "examples" / name / "README.md").read_text("utf-8")
