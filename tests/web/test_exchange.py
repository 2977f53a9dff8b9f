"""What an application sends goes out as it came, whatever it is made of; a scope that is used twice is two requests.
Of limits that meet on the way of one request a window is charged once, and what is settled is settled once.

Servers take lists for tuples, any kind of bytes for bytes, and whatever is true for True, and so does a middleware.
Compiled code checks the types that it declares, so what comes from others has to be declared as what it may be."""

import asyncio
import gc
import weakref
from asyncio import CancelledError
from collections import UserDict
from contextlib import suppress
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

import slidegate
from slidegate import BanPolicy, Limiter, MemoryStore, MessageLimits, RateLimit, RateLimitMiddleware, Rule
from slidegate.events import Outcome
from slidegate.networks.lists import Networks
from slidegate.testing import FakeClock

from ..asgi import PEER, Answer, call, hello, page, scope_of, send_scope, statuses
from ..drawing import examples
from .middlewares import FORMS, Listener, SocketClient, texts
from .stage import end_of

DRAFT: Final = {b"ratelimit", b"ratelimit-policy"}
LEGACY: Final = {b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"}
OURS: Final = {"draft": DRAFT, "legacy": LEGACY, ("draft", "legacy"): DRAFT | LEGACY, None: set[bytes]()}
OF_REFUSALS: Final = {b"retry-after", b"cache-control"}
TIGHT: Any = RateLimit("1/hour", name="tight")
DENIAL = {"websocket.http.response": {}}
NO_INTS: Final = (Decimal(404), 404.0, "404", b"404", True, 0, None)
"""Statuses that some servers take; some equal a whole number and are none, as the integers of numpy."""


def made(kinds: list[Any], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw a kind, and what it is made of."""
    return st.builds(lambda kind, *parts: kind(*parts), st.sampled_from(kinds), *parts)


def messages(type: str, given: dict[str, Any], **optional: Any) -> st.SearchStrategy[Any]:
    return made([dict, UserDict], st.fixed_dictionaries({"type": st.just(type), **given}, optional=optional))


BYTES: Final[list[Any]] = [bytes, bytearray, memoryview]
NAMES: Final = made(BYTES, st.sampled_from([b"x-a", b"Content-Type", b"x", b"", b"x" * 99]))
VALUES: Final = made(BYTES, st.binary(max_size=5))
THEIRS: Final = st.builds(
    lambda names, case, kind: [(kind(case(name)), b"theirs") for name in sorted(names)],
    st.sampled_from([set[bytes](), OF_REFUSALS, LEGACY, DRAFT | LEGACY | OF_REFUSALS]),
    st.sampled_from([bytes.lower, bytes.upper]),
    st.sampled_from(BYTES),
)
"""Fields of our names that an application has written."""
FIELDS: Final = st.lists(made([tuple, list], st.tuples(NAMES, VALUES)), max_size=4)
STATUSES: Final = st.sampled_from([200, HTTPStatus.CREATED, 204, 599, 99, 1_000, *NO_INTS])
STARTS: Final = messages(
    "http.response.start",
    {"status": STATUSES},
    headers=made([list, tuple], st.builds(list.__add__, FIELDS, THEIRS)),
    trailers=st.sampled_from([False, True, 0, None]),
    unknown=st.just(object()),
)
MORE: Final = st.sampled_from([False, True, 0, 1, None, "", "yes"])
BODIES: Final = messages("http.response.body", {}, body=VALUES, more_body=MORE)
START, BODY, COPY = ({"type": f"http.response.{name}"} for name in ("start", "body", "zerocopysend"))
MESSAGES: dict[str, Any] = {
    "start": {**START, "status": 200, "headers": []},
    "304": {**START, "status": 304, "headers": []},
    "trailed": {**START, "status": 200, "headers": [], "trailers": True},
    "hint": {"type": "http.response.early_hint", "links": []},
    "last": BODY,
    "more": {**BODY, "more_body": True},
    "file": {"type": "http.response.pathsend", "path": "/x"},
    "copy": {**COPY, "file": 3},
    "copy-more": {**COPY, "file": 3, "more_body": True},
    "trailers": {"type": "http.response.trailers", "headers": []},
    **{name: {"type": f"websocket.{name}"} for name in ("accept", "send", "close")},
    "raises": RuntimeError(),
    "left": ClientDisconnect(),
    "gone": WebSocketDisconnect(1001),
    "cancelled": CancelledError(),
}
"""What an application sends or raises."""
OTHERS: Final = st.sampled_from([
    {"type": "http.response.debug", "info": {}}, *(MESSAGES[name] for name in ("hint", "copy", "file", "trailers"))
])  # fmt: skip
OPTIONS: Final = st.fixed_dictionaries({
    "headers": st.sampled_from([*OURS]),
    "allowlist": st.sampled_from([None, Networks(["192.0.2.77"])]),
})  # fmt: skip
CLIENTS: Final = st.sampled_from([(PEER, 1), [PEER, 1], (PEER, None), [PEER, "1"]])


@settings(max_examples=examples(300), deadline=None)
@given(
    st.tuples(st.lists(OTHERS, max_size=2), STARTS, st.lists(BODIES | OTHERS, max_size=3)),
    st.lists(BODIES | STARTS, max_size=2),
    OPTIONS,
    CLIENTS,
    st.booleans(),
    st.booleans(),
)
async def test_an_answer_goes_out_as_it_came_whatever_it_is_made_of(
    answers: Any, late: list[Any], options: dict[str, Any], client: Any, is_limited: bool, is_judged: bool
) -> None:
    """The second time that it is sent, behind a refusal that the application has caught; nothing follows its call."""
    (before, start, after), kept, judged, own = answers, list[Send](), list[Any](), Limiter()
    given_fields = list(start.get("headers", ()))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(send)
        if is_limited:
            with suppress(slidegate.RateLimitExceeded):
                await TIGHT.check(Request(scope, receive))
        for message in [*before, start, *after]:
            await send(message)

    bans = [BanPolicy("2/m", signals={404: 1})] if is_judged else []
    rule = Rule("*", "99/hour", count_if=judged.append if is_judged else None)
    middleware = RateLimitMiddleware(app, rules=[rule], limiter=own, bans=bans, **options)
    _, answer = [await send_scope(middleware, scope_of("/", client=client)) for _ in range(2)]
    out = answer.messages
    for message in late:
        await kept[1](message)
    index = len(before)
    others = out[:index] + out[index + 1 :]
    assert all(sent is message for sent, message in zip(others, [*before, *after], strict=True))
    start_sent = dict(out[index])
    assert list(start.get("headers", ())) == given_fields, "a message that is sent again collects no fields"
    fields = list(start_sent.pop("headers", ()))
    assert fields[: len(given_fields)] == given_fields
    assert all(sent is own for sent, own in zip(fields, given_fields, strict=False))
    known = {bytes(name).lower() for name, _ in given_fields}
    # Of all but those of the draft there is one value.
    expected = OURS[options["headers"]] - (LEGACY if b"x-ratelimit-limit" in known else set())
    expected |= OF_REFUSALS - known if is_limited else set()
    assert {name for name, _ in fields[len(given_fields) :]} == expected
    assert start_sent == {name: value for name, value in start.items() if name != "headers"}
    status = start["status"]
    assert start_sent["status"] is status
    assert judged == [status or 200] * 2 * is_judged
    banned = await own.banned(PEER) is not None
    assert banned is (is_judged and status == 404 and not is_limited), "a status of any type strikes as what it equals"


# -- what is left of a request when it has ended -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"allowlist": Networks(["192.0.2.77"])}, {"on_refused": lambda request, decision: Response()}]
)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_request_is_freed_without_the_garbage_collector(options: dict[str, Any], fails: bool) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        if fails and "marker" in scope:
            raise RuntimeError("no")

    app = RateLimitMiddleware(page, limits="4/hour", **options)
    await statuses(app, 3)
    gc.disable()
    try:
        for _ in range(2):  # one is admitted, one refused
            server: Any = Answer()
            server.scope = {**scope_of("/"), "marker": True}  # as of uvicorn: its `receive` and `send` hold the scope
            gone = weakref.ref(server)
            with suppress(RuntimeError):
                await send_scope(app, server.scope, answer=server)
            assert [message["type"] for message in server.messages] == ["http.response.start", "http.response.body"]
            del server
            assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("limit", ["5/hour", "1/hour"])
async def test_a_task_that_goes_on_after_the_call_finds_the_client_gone_and_still_the_decision(limit: str) -> None:
    kept: list[Any] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        kept.append(Request(scope, receive, send))
        await hello(scope, receive, send)

    app = RateLimitMiddleware(page, limits=limit, messages=MessageLimits("9/second"))
    answer = await send_scope(app, scope_of("/"))
    (request,) = kept
    before = len(answer.messages)
    assert await request.is_disconnected()
    assert await request.receive() == {"type": "http.disconnect"}
    await request._send({"type": "http.response.body", "body": b"late"})
    assert len(answer.messages) == before, "nobody is there to get it"
    assert slidegate.decision_of(request).remaining == int(limit[0]) - 1
    decision = await slidegate.charge(request, 1)
    assert decision.remaining == max(0, int(limit[0]) - 2)
    with pytest.raises(slidegate.ConfigurationError, match="there is no RateLimitMiddleware around this endpoint"):
        await TIGHT.check(request)


async def test_a_websocket_is_closed_to_a_task_that_goes_on_after_the_call() -> None:
    kept: list[Any] = []

    async def talk(scope: Scope, receive: Receive, send: Send) -> None:
        kept[:] = receive, send
        await receive()
        await send({"type": "websocket.accept"})

    app = RateLimitMiddleware(talk, limits="5/hour", messages=MessageLimits("9/second"))
    client = await SocketClient().run(app)
    receive_late, send_late = kept
    assert await receive_late() == {"type": "websocket.disconnect", "code": 1006}
    with pytest.raises(OSError, match="closed"):
        await send_late({"type": "websocket.send", "text": "late"})
    await send_late({"type": "websocket.close"})  # as Starlette does in its `finally`
    assert [message["type"] for message in client.came] == ["websocket.accept"]


@pytest.mark.parametrize("says", [["close"], ["accept", "close"], ["http.response.start", "http.response.body"]])
async def test_what_a_client_sends_behind_the_applications_own_end_gets_no_other_end(says: list[str]) -> None:
    clock, read = FakeClock(), []
    limiter = Limiter(MemoryStore(clock=clock))

    async def talk(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        for kind in says:
            await send({"type": f"websocket.{kind}", "status": 403})
        await limiter.ban(PEER, "1h")
        for _ in range(3):
            clock.advance("11s")
            read.append((await receive())["type"])

    app = RateLimitMiddleware(talk, messages=MessageLimits("1/hour"), limiter=limiter)
    client = await SocketClient(*texts(3), extensions=DENIAL).run(app)
    assert [message["type"] for message in client.came] == [f"websocket.{kind}" for kind in says]
    assert read == ["websocket.receive"] * 3


# -- limits that meet on the way of one request ------------------------------------------------------------------------


async def test_a_limit_at_an_endpoint_asks_the_middleware_around_it_and_none_that_the_request_has_passed() -> None:
    aside = RateLimitMiddleware(lambda *given: asyncio.sleep(0), limits="1000/minute", limiter=Limiter())
    within = FORMS["checked"](RateLimit("1/minute"), page)

    async def beside(scope: Scope, receive: Receive, send: Send) -> None:
        await aside(scope, receive, send)
        await within(scope, receive, send)

    app = RateLimitMiddleware(beside, rules=[Rule("*", "1000/minute", name="outer")])
    answers = [await call(app) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert answers[-1].headers["ratelimit-policy"].count("q=") == 2


# -- what observers get of a request: its outcome, once, when its last byte is out, and one event if it is refused ----


ENDS: Final = {
    "start last": "start 1 body [success] 0 end 0",
    "start more more copy": "start 1 body 1 body 1 zerocopysend [success] 0 end 0",
    "start copy-more last": "start 1 zerocopysend 1 body [success] 0 end 0",
    "trailed last trailers": "start 1 body [success] 0 trailers 0 end 0",
    "hint hint start last": "early_hint 1 early_hint 1 start 1 body [success] 0 end 0",
    "start last last more start file": "start 1 body [success] 0 body 0 body 0 start 0 pathsend 0 end 0",
    "raises": "[exception] end 0",
    "start limited": "start 1 [exception] end 0",
    "start last raises": "start 1 body [success] 0 end 0",
    "start more left": "start 1 body 1 [success] end 0",
    "caught cancelled": "[refused] end 0",
    "caught start last": "start 1 body [refused] 0 end 0",
    "cancelled": "[success] end 0",
    "nothing": "[success] end 0",
    "accept send close": "accept 1 send 1 close [success] 0 end 0",
    "accept gone": "accept 1 [success] end 0",
    "close": "close [success] 0 end 0",
}
"""What comes to the server, the outcome in brackets where observers get it, and the permits held behind each."""


async def ends(words: list[str]) -> str:
    """Return what comes to the server and, beside an observer that fails, the outcome; and permits behind each send."""
    store, reported = MemoryStore(), list[str]()

    class Failing(Listener):
        def request(self, outcome: Outcome, /) -> None:
            reported.append(f"[{end_of(outcome)}]")
            raise RuntimeError("no")

    limiter = Limiter(store)
    await limiter.hit(PEER, "1/hour", rule="tight")
    listener, brief = Listener(), Listener()
    brief.takes_passed = True
    for observer in (Failing(), listener, brief):
        limiter.observe(observer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for word in words:
            if word == "limited":
                await TIGHT.check(Request(scope))
            if word == "caught":
                with pytest.raises(slidegate.RateLimitExceeded):
                    await TIGHT.check(Request(scope))
                continue
            if isinstance(MESSAGES[word], BaseException):
                raise MESSAGES[word]
            await send(MESSAGES[word])
            reported.append(str(store.permits_held()))

    async def send(message: Message) -> None:
        reported.append(message["type"].rpartition(".")[2])

    middleware = RateLimitMiddleware(app, rules=[Rule("*", "5/day", concurrency=1)], limiter=limiter)
    error: BaseException | None = None
    try:
        kind = "websocket" if words[:1] in (["accept"], ["close"]) else "http"
        await middleware(scope_of(type=kind), anyio.sleep_forever, send)
    except (Exception, CancelledError) as raised:
        error = raised
    (outcome,), (decision, *more) = listener.outcomes, listener.outcomes[0].decisions
    passed = outcome.client, decision.checks, outcome.route, outcome.duration_us, outcome.status
    is_ordinary = end_of(outcome) == "success" and error is None and not more
    assert brief.outcomes in ([[passed]] if is_ordinary else [[outcome], [passed]])
    return " ".join([*reported, f"end {store.permits_held()}"])


@pytest.mark.parametrize("words", ENDS)
async def test_a_request_has_one_outcome_behind_its_last_byte_and_until_then_its_permit(words: str) -> None:
    """By what an application sends, and how it ends."""
    assert await ends(words.removeprefix("nothing").split()) == ENDS[words]


@given(
    st.sampled_from(["5/2s", "5/1500ms", "7/2s @2", slidegate.Quota("5/day")]),
    st.lists(st.integers(1, 900_000), min_size=1, max_size=5),
)
async def test_at_the_reset_of_the_older_fields_everything_spent_has_left(limits: Any, pauses_us: list[int]) -> None:
    clock = FakeClock(1_800_000_000_000_000)
    app = RateLimitMiddleware(hello, limits=limits, limiter=Limiter(MemoryStore(clock=clock)), headers="legacy")
    for pause_us in pauses_us:
        clock.advance(us=pause_us)
        answer = await call(app)
    reset_us = int(answer.headers["x-ratelimit-reset"]) * 1_000_000
    assert clock.now_us < reset_us
    clock.set(reset_us)
    answer = await call(app)
    assert int(answer.headers["x-ratelimit-remaining"]) == int(answer.headers["x-ratelimit-limit"]) - 1
