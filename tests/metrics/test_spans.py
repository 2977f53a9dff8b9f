"""The decision stands on the span of the request, if that records, and nothing of the client's stands beside it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from starlette.responses import PlainTextResponse

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule, header
from slidegate.otel import DecisionSpans
from slidegate.testing import FakeClock

from ..asgi import Answer, call, hello

CLIENT = "203.0.113.9"


class Traced:
    """An application in a span of its own for each request, as an instrumentation of servers makes it."""

    def __init__(self, app: Any, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False, **options)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("server")
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self.tracer.start_as_current_span("request"):
            await self.app(scope, receive, send)

    async def ask(self, path: str = "/", **more: Any) -> tuple[Answer, dict[str, Any], list[dict[str, Any]]]:
        """Send a request, and return the answer, the attributes of its span, and those of its events."""
        self.exporter.clear()
        answer = await call(self, path, **more)
        (span,) = self.exporter.get_finished_spans()
        events = [event for event in span.events if event.name == "slidegate.decision"]
        return answer, dict(span.attributes or {}), [dict(event.attributes or {}) for event in events]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(10**15)


def middleware(clock: FakeClock, app: Any = hello, **options: Any) -> Traced:
    limiter = Limiter(MemoryStore(clock=clock))
    return Traced(DecisionSpans(RateLimitMiddleware(app, limiter=limiter, **options)))


async def test_the_span_tells_the_decision(clock: FakeClock) -> None:
    app = middleware(clock, rules=[Rule("*", "2/minute", name="visitor"), Rule("*", "100/minute", name="service")])
    answer, attributes, events = await app.ask()
    assert answer.status == 200
    assert attributes == {
        "slidegate.outcome": "passed",
        "slidegate.reason": "ok",
        "slidegate.allowed": True,
        "slidegate.waited": False,
        "slidegate.rule": "visitor",
        "slidegate.limit": "2/1m",
        "slidegate.remaining": 1,
    }
    assert [event["slidegate.remaining"] for event in events] == [1]
    await app.ask()
    clock.advance("20s")
    answer, attributes, _ = await app.ask()
    assert answer.status == 429
    assert (attributes["slidegate.outcome"], attributes["slidegate.reason"]) == ("refused", "limited")
    assert (attributes["slidegate.rule"], attributes["slidegate.retry_after"]) == ("visitor", 40.0)


async def test_bans_lists_and_exemptions_have_outcomes_of_their_own(clock: FakeClock) -> None:
    app = middleware(
        clock,
        rules=[Rule("/free", exempt=True), Rule("*", "1/hour", name="service")],
        blocklist=Networks(["192.0.2.0/24"]),
        bans=BanPolicy(name="greedy", after="1/10m", duration="1h"),
    )
    told = [(await app.ask(path))[1] for path in ("/free", "/", "/", "/")]
    assert [attributes["slidegate.outcome"] for attributes in told] == ["passed", "passed", "refused", "banned"]
    assert told[3]["slidegate.by"] == "greedy"
    assert 3_600 <= told[3]["slidegate.retry_after"] < 4_000, "bans are a little longer, each by its own share"
    assert "slidegate.rule" not in told[0]
    _, blocked, _ = await app.ask(client=("192.0.2.1", 1))
    assert blocked["slidegate.outcome"] == "blocked"
    assert "slidegate.retry_after" not in blocked


async def test_limits_at_endpoints_stand_beside_those_of_the_middleware(clock: FakeClock) -> None:
    endpoints: Any = FastAPI()

    @endpoints.get("/search", dependencies=[Depends(RateLimit("1/minute", name="search"))])
    async def search() -> str:
        return "found"

    app = middleware(clock, endpoints, rules=[Rule("*", "100/minute", name="service")])
    answer, attributes, events = await app.ask("/search")
    assert answer.status == 200
    assert [event["slidegate.rule"] for event in events] == ["service", "search"]
    assert attributes["slidegate.rule"] == "search", "it leaves the fewest more requests"
    answer, attributes, events = await app.ask("/search")
    assert answer.status == 429
    assert (attributes["slidegate.outcome"], attributes["slidegate.rule"]) == ("refused", "search")


async def test_a_request_that_fails_tells_its_decision(clock: FakeClock) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no")

    app = middleware(clock, broken, limits="5/minute")
    with pytest.raises(RuntimeError):
        await call(app)
    (span,) = app.exporter.get_finished_spans()
    assert dict(span.attributes or {})["slidegate.outcome"] == "passed"


async def test_what_no_middleware_has_judged_has_no_attributes(clock: FakeClock) -> None:
    for app in (Traced(DecisionSpans(hello)), middleware(clock, limits="5/minute", enabled=False)):
        _, attributes, events = await app.ask()
        assert (attributes, events) == ({}, [])


async def test_a_span_that_does_not_record_is_asked_once_and_told_nothing(clock: FakeClock) -> None:
    app = middleware(clock, limits="1/minute")
    sampled_out = Traced(app.app, sampler=ALWAYS_OFF)
    assert (await call(sampled_out)).status == 200
    assert (await call(app.app)).status == 429, "without any span it is the same"
    assert sampled_out.exporter.get_finished_spans() == ()
    assert not trace.get_current_span().is_recording()


async def test_nothing_that_a_client_chooses_gets_into_attributes(clock: FakeClock) -> None:
    app = middleware(clock, PlainTextResponse("hi"), rules=[Rule("*", "1/minute", key=header("X-API-Key"), name="key")])
    secret = "s3cr3t-\u202e-value"
    for _ in range(2):
        _, attributes, events = await app.ask(f"/{secret}", headers=[(b"x-api-key", secret.encode())])
        shown = repr([attributes, *events])
        assert "s3cr3t" not in shown
        assert CLIENT not in shown
        assert "X-API-Key" not in shown


async def test_a_websocket_tells_its_decision_too(clock: FakeClock) -> None:
    app = middleware(clock, limits="1/minute")
    outcomes = []
    for _ in range(2):
        app.exporter.clear()
        await call(app, type="websocket", subprotocols=[])
        (span,) = app.exporter.get_finished_spans()
        outcomes.append(dict(span.attributes or {})["slidegate.outcome"])
    assert outcomes == ["passed", "refused"]
