"""A failing function of the user's is neither a way past the middleware nor a 500."""

from __future__ import annotations

import logging
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, scope_of, send_scope, statuses
from .limited import limited


def raising(request: Any, *more: Any) -> Any:
    raise KeyError("broken token")


async def raising_later(request: Any, *more: Any) -> Any:
    raise KeyError("broken token")


@pytest.mark.parametrize("key", [raising, raising_later, lambda request: 42, lambda request: b"k"])
@pytest.mark.parametrize("at", ["rule", "dependency", "decorator"])
async def test_a_key_function_that_fails_counts_the_client_address(
    key: Any, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = limited(at, "2/hour", key=key, name="tenants")
    assert await statuses(app, 4) == [200, 200, 429, 429]
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(records) == 1, "once in a while, not once a request"
    assert "'tenants'" in records[0].getMessage()
    scope = scope_of()
    await send_scope(app, scope)
    assert scope["slidegate.ended"].decision.binding.key == PEER


@pytest.mark.parametrize("answer", [raising, raising_later, lambda request, decision: None])
async def test_an_on_refused_that_fails_gets_the_default_answer(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", name="api")], on_refused=answer)
    assert await statuses(app, 3) == [200, 429, 429]
    assert (await call(app)).headers["content-type"] == "application/problem+json"
    assert len(caplog.records) == 1
    assert "'api'" in caplog.text


async def test_an_answer_that_breaks_after_its_start_is_not_started_twice() -> None:
    class Broken(PlainTextResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            raise KeyError("half")

    sent = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    app = RateLimitMiddleware(hello, limits="1/hour", on_refused=lambda request, decision: Broken("x"))
    await call(app)
    with pytest.raises(KeyError, match="half"):
        await app(scope_of(), None, send)  # type: ignore[arg-type]
    assert sent == ["http.response.start"]


async def test_failures_are_logged_again_after_a_minute_with_what_was_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", lambda: clock() / 1_000_000)
    app = RateLimitMiddleware(
        hello, limiter=Limiter(MemoryStore(clock=clock)), rules=[Rule("*", "99/hour", key=raising, name="r")]
    )
    clock.advance("2m")
    await statuses(app, 5)
    clock.advance("61s")
    await statuses(app, 2)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition("suppressed=")[2].partition(")")[0] for message in messages] == ["0", "4"]


class Index:
    """A whole number of another kind, as numpy has them."""

    def __index__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "Index"


WHOLE = [(7, 7), (7.0, 7), (0.0, 0), (-0.0, 0), (1e2, 100), (Index(), 7)]
BAD = [7.5, -7.0, float("nan"), float("inf"), "7", None, True, Decimal(7), Fraction(7), b"7", [7]]


@pytest.mark.parametrize(("cost", "spent"), [*WHOLE, *((bad, 1) for bad in BAD)], ids=repr)
@pytest.mark.parametrize("at", ["rule", "dependency"])
async def test_whole_numbers_of_any_kind_cost_what_they_say_and_all_else_costs_1(
    cost: Any, spent: int, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    middleware = limited(at, "1000/hour", cost=lambda request: cost, name="export")
    answer = await call(middleware)
    assert answer.headers["ratelimit"].partition(";")[2].startswith(f"r={1000 - spent};")
    whole = any(cost is one for one, _ in WHOLE)
    assert [record.levelname for record in caplog.records] == ([] if whole else ["ERROR"])
    assert whole or "'export'" in caplog.text


@pytest.mark.parametrize("cost", [raising, raising_later])
async def test_a_cost_function_that_fails_costs_one(cost: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert await statuses(limited("rule", "2/hour", cost=cost, name="export"), 3) == [200, 200, 429]
    assert "'export'" in caplog.text


class Odd:
    """A function that equals everything and cannot be hashed, as an instance of a data class may."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, request: Any, *more: Any) -> Any:
        return self.answer

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "options",
    [
        {"when": Odd(True)},
        {"key": Odd("all")},
        {"cost": Odd(1)},
        {"limits": Odd("1/hour")},
        {"count_if": Odd(True)},
        {"limits": Odd("1/hour"), "when": Odd(True), "key": Odd("all"), "cost": Odd(1), "count_if": Odd(True)},
    ],
)
async def test_functions_are_told_apart_by_identity(options: Any) -> None:
    last = Rule("*", "9/minute", name="last", when=Odd(False))
    app = RateLimitMiddleware(hello, rules=[Rule("*", **{"limits": "1/hour", "name": "odd", **options}), last])
    assert await statuses(app, 2) == [200, 429]
    track = Rule("*", "1/hour", shadow=True, on_exceeded=Odd(None))
    app = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour"), track], on_refused=Odd(PlainTextResponse("no", 430)))
    assert await statuses(app, 2) == [200, 430]
