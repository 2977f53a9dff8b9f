"""What error trackers and the log get in an outage is bounded by time: as much for ten requests as for a hundred."""

import json
import subprocess
import sys
from typing import Any

import pytest

BOUND_S = 120
PROGRAM = """
import asyncio, json, logging, sys
from contextlib import suppress
import sentry_sdk
from fastapi import Depends, FastAPI
from sentry_sdk.integrations.asyncio import AsyncioIntegration
from slidegate import BanPolicy, Limiter, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule, StoreError
from slidegate.core import StoreUnavailable
from slidegate.dashboard import Dashboard
from tests.asgi import call
from tests.remote_stores import SlowStore

on_error, at_endpoints, ignores = sys.argv[1], sys.argv[2] or None, bool(sys.argv[3])
captured, lines, found = [], [], []
TOKEN = "0123456789abcdef"
POLICY = BanPolicy("100000/minute", "1h", signals={404: 1, "/trap": 1})


class Lines(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING and record.name != "sentry_sdk.errors":
            lines.append(f"{record.levelname} {record.getMessage()}"[:40])


def what(event, hint):
    captured.append(hint["exc_info"][0].__name__ if "exc_info" in hint else event["logentry"]["message"][:20])


async def cut_off(work, turns):
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


async def strike(limiter, key):  # as users write it, who know that it raises with "deny"
    with suppress(StoreError):
        await limiter.strike(key, POLICY)


async def main():
    options = {"transport": lambda envelope: None, "before_send": what, "integrations": [AsyncioIntegration()]}
    sentry_sdk.init("http://key@127.0.0.1:9/1", **options, ignore_errors=[RateLimitExceeded] if ignores else [])
    logging.getLogger().addHandler(Lines())
    store = SlowStore()
    limiter = Limiter(store, on_error=on_error)
    app = FastAPI()
    app.get("/depends", dependencies=[Depends(RateLimit("5/second", on_error=at_endpoints))])(lambda: 1)
    app.get("/decorated")(RateLimit("5/minute", on_error=at_endpoints)(lambda: 1))
    app.get("/failing", status_code=500)(lambda: 1)
    app.mount("/limits", Dashboard(limiter, token=TOKEN))
    rules = [Rule("/failing", "100000/minute", count_if=lambda status: status == 500)]
    app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=rules, bans=POLICY)
    decision = await limiter.hit("ann", "5/minute")
    store.error = StoreUnavailable("gone")
    for number in range(100):
        client = f"198.51.100.{number}", 1
        for path in ("/depends", "/decorated", "/failing", "/trap", "/none"):
            await call(app, path, client=client)
            await cut_off(call(app, path, client=client), 1 + number % 6)
        await call(app, "/limits/api/bans", headers=[(b"authorization", b"Bearer " + TOKEN.encode())])
        await cut_off(strike(limiter, f"user:{number}"), 2)
        await cut_off(limiter.refund(decision), 2)
        await cut_off(limiter.charge("ann", "5/minute", 1), 2)
        if number in (9, 99):
            found.append([sorted(captured), sorted(lines)])
    print(json.dumps(found))


asyncio.run(main())
"""


def reported(on_error: str, at_endpoints: str, *, ignores: bool = False) -> list[list[Any]]:
    """Return what Sentry and the log have got when ten, and a hundred requests of each kind have met an outage."""
    program = [sys.executable, "-c", PROGRAM, on_error, at_endpoints, "ignores" * ignores]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ended.returncode == 0, ended.stderr
    found: list[list[Any]] = json.loads(ended.stdout)
    return found


@pytest.mark.all
@pytest.mark.parametrize(("on_error", "at_endpoints"), [("deny", ""), ("local", ""), ("allow", ""), ("local", "deny")])
def test_an_outage_is_reported_as_often_for_many_requests_as_for_few(on_error: str, at_endpoints: str) -> None:
    """A limit at an endpoint that refuses with 503 raises, which a tracker needs to be configured to ignore."""
    few, many = reported(on_error, at_endpoints, ignores=bool(at_endpoints))
    assert few == many
    captured, lines = few
    assert 1 <= len(captured) <= len(lines) <= 4
    if at_endpoints:
        _, (captured, _) = reported(on_error, at_endpoints)
        assert captured.count("EndpointRefusal") >= 100, "else the page need not say that it is to be ignored"
