"""The code that users write first, as the README shows it; the whole thing is in web/scenarios/readme.txt."""

from fastapi import FastAPI
from starlette.testclient import TestClient

from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.core import Reason
from slidegate.testing import FakeClock, limits_clock


def test_one_line_holds_every_client_to_a_hundred_requests_a_minute() -> None:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits="100/minute")
    client = TestClient(app)
    with limits_clock(FakeClock(10**15)) as clock:
        assert [client.get("/").status_code for _ in range(101)] == [404] * 100 + [429]
        clock.advance("61s")
        assert client.get("/").status_code == 404


async def test_without_http_one_decision_says_everything() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock(10**15)))
    decision = await limiter.hit("user:42", "5/minute; 50/hour", cost=1)
    assert (decision.allowed, decision.remaining, decision.retry_after) == (True, 4, 0)
    assert (decision.reset_after, decision.reason) == (60, Reason.OK)
    assert (await limiter.peek("user:42", "5/minute")).remaining == 3, "what a hit would leave"
    assert await limiter.refund(decision) is True
    assert await limiter.refund(decision) is False
    refused = [await limiter.hit("user:42", "5/minute; 50/hour", cost=1) for _ in range(6)][-1]
    assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 0, 60)
    assert (refused.reset_after, refused.reason) == (60, Reason.LIMITED)
    assert await limiter.reset("user:42") is True
    assert (await limiter.hit("user:42", "5/minute; 50/hour", cost=1)).remaining == 4
