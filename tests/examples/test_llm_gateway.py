"""The gateway charges the tokens that it streamed, however the stream ends, and keeps the terms of its model."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message

from examples.llm_gateway.app import BUDGETS, Accounts, make_app
from examples.llm_gateway.model import make_model
from examples.llm_gateway.relay import RULE, Relay
from examples.llm_gateway.upstream import Answer, ModelError, Upstream
from examples.llm_gateway.visit import KEYS
from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock
from tests.asgi import scope_of
from tests.examples.visits import running, shown

pytestmark = pytest.mark.all


def test_the_command_plays_the_visit_of_the_readme_and_serves_the_gateway() -> None:
    with (
        running("examples.llm_gateway", hints=2) as example,
        httpx.Client(base_url=example.url, trust_env=False, timeout=60) as http,
    ):
        assert example.visit == shown("llm_gateway")
        key = example.hints.split("ann has the API key ")[1].split()[0]
        http.headers["Authorization"] = f"Bearer {key}"
        answer = http.post("/v1/ask", json={"prompt": "hello", "max_tokens": 1_500})
        events = answer.text.strip().split("\n\n")
        assert len(events) == 1_501
        assert json.loads(events[-1].removeprefix("event: usage\ndata: "))["left"]["minute"] == 0
        assert '"minute";q=1000;w=60, "day";q=6000' in answer.headers["RateLimit-Policy"]
        refused = http.post("/v1/ask", json={"prompt": "hello", "max_tokens": 1})
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["Retry-After"]) <= 61


class Fault(Exception):
    """A mistake in the gateway."""


class Told(Answer):
    """An answer of some tokens, at whose end something happens."""

    def __init__(self, count: int, end: Exception | None = None) -> None:
        self.count = count
        self.end = end
        self.closed = 0

    async def tokens(self) -> AsyncGenerator[str, None]:
        for number in range(self.count):
            yield f"word-{number}"
        if self.end is not None:
            raise self.end

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()  # as connections do
        self.closed += 1


class Client:
    """Takes an answer, and leaves at one of its messages, which it never finishes taking; or takes all of it.

    Where the server stops at that message, the whole request is cancelled.
    """

    def __init__(self, leaves_at: int | None = None, *, server_stops: bool = False) -> None:
        self.leaves_at = leaves_at
        self.server_stops = server_stops
        self.request = anyio.CancelScope()
        self.bodies: list[bytes] = []
        self.has_left = anyio.Event()

    async def receive(self) -> Message:
        if self.leaves_at == 0:
            return {"type": "http.disconnect"}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            return
        self.bodies.append(message["body"])
        if len(self.bodies) == self.leaves_at:
            if self.server_stops:
                self.request.cancel()
            else:
                self.has_left.set()
            await anyio.sleep_forever()


async def relayed(answer: Answer, client: Client) -> int:
    """Relay an answer to a client; return how many tokens were charged."""

    async def ask(request: Request) -> Relay:
        return Relay(request, answer)

    async with Limiter(MemoryStore(clock=FakeClock())) as limiter:
        rule = Rule("/", "1000/minute", cost=0, key=lambda request: "account:ann", name=RULE)
        middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=[rule])
        app = Starlette(routes=[Route("/", ask)], middleware=[middleware])
        with anyio.fail_after(60), client.request, suppress(Fault):
            await app(scope_of("/"), client.receive, client.send)
        decision = await limiter.peek("account:ann", "1000/minute", cost=0, rule=RULE)
        return 1_000 - decision.remaining


@pytest.mark.parametrize(
    ("answer", "client", "charged"),
    [
        (Told(10), {"leaves_at": 1}, 1),
        (Told(10), {"leaves_at": 7}, 7),
        (Told(10), {"leaves_at": 3, "server_stops": True}, 3),
        (Told(3, Fault()), {}, 3),
    ],
    ids=["leaves", "leaves late", "the server stops", "the gateway fails"],
)
async def test_what_was_on_its_way_is_charged_however_an_answer_ends(
    answer: Told, client: dict[str, Any], charged: int
) -> None:
    assert await relayed(answer, Client(**client)) == charged
    assert answer.closed == 1


async def test_a_client_that_has_left_before_the_first_token_is_charged_for_no_more_than_came() -> None:
    answer, client = Told(10), Client(leaves_at=0)
    charged = await relayed(answer, client)
    assert charged <= len(client.bodies) + 1
    assert answer.closed == 1


@pytest.mark.parametrize("count", [0, 1, 10])
async def test_a_whole_answer_is_charged_once(count: int) -> None:
    answer, client = Told(count), Client()
    assert await relayed(answer, client) == count
    usage = json.loads(client.bodies[-2].decode().removeprefix("event: usage\ndata: "))
    assert usage == {"tokens": count, "left": {RULE: 1_000 - count}}
    assert answer.closed == 1


async def test_an_answer_that_breaks_off_ends_in_an_error_and_is_charged_as_far_as_it_came() -> None:
    client = Client()
    assert await relayed(Told(3, ModelError("the model broke off")), client) == 3
    assert client.bodies[3] == b'event: error\ndata: {"error": "the model broke off"}\n\n'
    assert client.bodies[4].startswith(b"event: usage")


def gateway(limiter: Limiter, model: Starlette) -> httpx.AsyncClient:
    upstream = Upstream("http://model.test", "100/second", transport=httpx.ASGITransport(app=model))
    transport = httpx.ASGITransport(app=make_app(limiter, Accounts(KEYS), upstream))
    headers = {"Authorization": f"Bearer {KEYS['ann']}"}
    return httpx.AsyncClient(transport=transport, base_url="http://gateway.test", headers=headers)


async def left(limiter: Limiter) -> list[int]:
    decision = await limiter.peek("account:ann", BUDGETS, cost=0, rule=RULE)
    return [limit.amount - state.remaining for limit, state in zip(BUDGETS, decision.states, strict=True)]


async def test_an_unknown_key_is_refused_before_any_token_is_counted() -> None:
    async with Limiter(MemoryStore(clock=FakeClock())) as limiter, gateway(limiter, make_model()) as http:
        for value in ("Bearer nobody", "Basic " + KEYS["ann"], "", "Bearer"):
            answer = await http.post("/v1/ask", json={"prompt": "hello"}, headers={"Authorization": value})
            assert answer.status_code == 401
        assert await left(limiter) == [0, 0]
