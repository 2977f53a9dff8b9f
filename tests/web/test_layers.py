"""What layers around a middleware, and applications and middlewares within it, may do to requests and to answers."""

import os
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import WebSocketException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

import slidegate
from slidegate import BanPolicy, Decision, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import RecordingObserver

from ..asgi import PEER, Answer, call, hello, scope_of, send_scope, statuses
from ..stores.forked import actor, outcome


@pytest.mark.parametrize(
    "options",
    [
        {"blocklist": Networks([PEER])},
        {"rules": [Rule("*", block=True)]},
        {"limits": "1/hour; 5/day"},
        {"limits": "1/hour", "bans": BanPolicy("1/hour", "1h")},
    ],
    ids=str,
)
async def test_a_layer_around_may_change_the_fields_of_an_answer_in_place(options: dict[str, Any]) -> None:
    refusing = RateLimitMiddleware(hello, **options)

    async def adding(scope: Scope, receive: Receive, send: Send) -> None:
        async def added(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-request-id", scope["path"].encode()))
            await send(message)

        await refusing(scope, receive, added)

    answers = [await call(adding, f"/{number}") for number in range(4)]
    assert answers[-1].status in (403, 429)
    added = [[value for name, value in answer.start["headers"] if name == b"x-request-id"] for answer in answers]
    assert added == [[b"/0"], [b"/1"], [b"/2"], [b"/3"]]


async def test_a_scope_that_its_application_has_emptied_fails_no_request() -> None:
    async def emptying(scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        scope.clear()

    assert await statuses(RateLimitMiddleware(emptying, limits="5/minute"), 2) == [200, 200]


# -- limits that endpoints ask for themselves --------------------------------------------------------------------------


async def chats(app: ASGIApp) -> tuple[list[str], list[Any]]:
    answer = Answer()
    await send_scope(app, scope_of("/ws", type="websocket", scheme="ws"), answer=answer)
    return [message["type"] for message in answer.messages], [message.get("code") for message in answer.messages]


@pytest.mark.parametrize("is_accepted", [False, True])
async def test_of_the_refusals_of_a_websocket_the_one_that_ends_it_is_an_event(is_accepted: bool) -> None:
    """And no other, which it has caught, before it is accepted and afterwards."""
    tight, wide, third = (RateLimit(f"{n}/minute", name=name) for n, name in ((1, "tight"), (99, "wide"), (1, "third")))

    async def chat(websocket: WebSocket) -> None:
        if is_accepted:
            await websocket.accept()
        try:
            await tight.check(websocket)
        except (WebSocketException, slidegate.RateLimitExceeded):
            await wide.check(websocket)
        if is_accepted:
            await third.check(websocket)
        else:
            await websocket.accept()
        await websocket.close()

    observer = RecordingObserver()
    limiter = Limiter(observers=[observer])
    app = RateLimitMiddleware(Starlette(routes=[WebSocketRoute("/ws", chat)]), limiter=limiter)
    codes = [(await chats(app))[1][-1] for _ in range(3)]
    assert codes == ([1000, 1013, 1013] if is_accepted else [1000] * 3)
    refused = [event.details["rule"] for event in observer.events if event.kind == "refused"]
    assert refused == ["third"] * 2 * is_accepted


async def test_what_an_endpoint_asks_again_is_one_question_counts_its_status_once_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, seen, kept = list[int](), list[int](), list[int]()
    hit = MemoryStore.hit

    def counted(self: MemoryStore, checks: Any, subjects: Any = ()) -> Decision:
        asked.append(len(checks))
        return hit(self, checks, subjects)

    monkeypatch.setattr(MemoryStore, "hit", counted)
    limit = RateLimit("1000/minute", count_if=lambda status: bool(seen.append(status)) or True, name="one")
    held = RateLimit(concurrency=1)

    async def twice(request: Request) -> Response:
        await limit.check(request)
        await limit.check(request)
        return PlainTextResponse("hi")

    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        for _ in range(200):
            await held.check(websocket)
        visit = websocket.scope["slidegate"]
        kept.append(len(visit.effects) + len(visit.own_decisions))
        await websocket.close()

    routes, limiter = [Route("/", twice), WebSocketRoute("/ws", chat)], Limiter()
    await limiter.ban("198.51.100.9", "1h")
    app = RateLimitMiddleware(Starlette(routes=routes), limiter=limiter, bans=BanPolicy("5/minute", signals={404: 1}))
    assert (await call(app)).status == 200
    assert seen == [200]
    assert asked == [0, 1], "one question for the middleware, whose client may be banned, and one at the endpoint"
    await chats(app)
    assert kept[0] < 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_a_ban_is_stored_refuses_the_client() -> None:
    store: Any = MemoryStore()
    subjects, allowed = (PEER,), list[bytes]()

    class Forking(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            allowed.append(outcome(*actor(lambda pipe: os.write(pipe, b"%d" % store.hit((), subjects).allowed)))[0])

    store.bans.ban("198.51.100.9", 10**9, "", "ann")  # so that hits look for bans at all
    store.bans.rows.bans = Forking(store.bans.rows.bans)
    assert store.hit((), subjects).allowed
    store.bans.ban(PEER, 10**9, "", "ann")
    assert allowed == [b"0"]
