"""A replay makes the same decisions as real ASGI calls to the middleware at the same times."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.logs import AccessLogs, AccessRecord
from slidegate.simulation.clients import Clients
from slidegate.simulation.replay import Replay, scope_of
from slidegate.simulation.report import Simulated
from slidegate.testing import FakeClock

from ..asgi import send_scope

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "demo" / "sample.log"
RULES = """
[[rules]]
path = "/robots.txt"
exempt = true

[[rules]]
path = "/{first}/{rest:path}"
limits = "20/10s; 100/minute"

[[rules]]
path = "*"
limits = "60/minute; 300/hour @10"

[bans.scanners]
after = "20/10m"
duration = "30m"
signals = { 404 = 1, refused = 1, "/.env" = "ban" }
"""


def record(second: float, client: str = "192.0.2.7", path: str = "/", **more: Any) -> AccessRecord:
    return AccessRecord(1_772_532_000_000_000 + round(second * 1_000_000), client, "GET", path, 200, None)._replace(
        **more
    )


async def statuses_of(records: list[AccessRecord], rules: Path) -> list[int]:
    """Return the statuses of a Starlette application with the middleware, called like a server does."""

    async def answer(request: Request) -> Response:
        return Response(status_code=int(request.headers["x-status"]))

    clock = FakeClock()
    app: ASGIApp = Starlette(routes=[Route("/{path:path}", answer, methods=[])])
    app.router.redirect_slashes = False  # type: ignore[attr-defined]
    middleware = RateLimitMiddleware.from_file(
        app, rules, limiter=Limiter(MemoryStore(clock=clock)), ignore_checks=["SG103"]
    )
    found: list[int] = []
    for one in records:
        clock.set(max(clock.now_us, one.time_us))
        scope = scope_of(one)
        scope["headers"].append((b"x-status", str(one.status or 200).encode()))
        found.append((await send_scope(middleware, scope)).status)
    return found


def test_a_replay_decides_as_the_middleware_does_over_asgi(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    records = [one for one in AccessLogs([SAMPLE]) if one.method]
    replay = Replay.from_file(rules)
    played = [replay.play(one) for one in records]
    expected = asyncio.run(statuses_of(records, rules))
    assert [it.status for it in played] == expected
    outcomes = Counter(it.outcome for it in played)
    assert outcomes["refused"] + outcomes["banned"] >= 100
    assert outcomes["banned"] > 0
    assert outcomes["passed"] > 0


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a%20b?c=d", "/a b", b"c=d"),
        ("http://example.org/a?c=d", "/a", b"c=d"),
        ("http://example.org", "/", b""),
        ("http://[", "/http://[", b""),
    ],
)
def test_every_form_of_a_target_is_a_path(target: str, path: str, query: bytes) -> None:
    scope = scope_of(record(0, path=target))
    assert (scope["path"], scope["query_string"]) == (path, query)


def test_a_record_that_comes_late_counts_at_the_time_before_it() -> None:
    replay = Replay(limits="1/10s")
    assert replay.play(record(100)).outcome == "passed"
    assert replay.play(record(0)).outcome == "refused"
    assert replay.play(record(110)).outcome == "passed"


def test_a_rule_that_waits_refuses_and_is_named(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\npath = "*"\nlimits = "1/10s"\nwait = "5s"\nname = "slow"\nconcurrency = 1\n')
    replay = Replay.from_file(rules)
    assert replay.unwaited == ("slow",)
    assert [replay.play(record(second)).outcome for second in (0, 8)] == ["passed", "refused"]


def test_memory_grows_with_clients_and_not_with_lines() -> None:
    simulated = Simulated(Replay(limits="1000/minute"), Clients())
    for number in range(5_000):
        simulated.add(record(number * 7, f"192.0.2.{number % 50}", f"/page/{number}", user_agent=f"agent {number}"))
    assert simulated.clients.requests == 5_000
    clients = simulated.clients.tallies.values()
    assert len(clients) == 50
    assert all(len(client.agents) <= 32 and len(client.paths) <= 64 for client in clients)
    assert set(simulated.routes) == {"/page/{id}"}
