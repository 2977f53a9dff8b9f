"""What an application sends goes out as it came, whatever kinds of values it is made of; our fields come on top.

Servers take lists for tuples, any kind of bytes for bytes, and whatever is true for True, and so does a middleware.
Compiled code checks the types that it declares, so what comes from others has to be declared as what it may be.
"""

from __future__ import annotations

import asyncio
from collections import UserDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from slidegate import Limiter, Networks, RateLimitMiddleware

from ..asgi import PEER, scope_of, send_scope

OURS: Final = {b"ratelimit", b"ratelimit-policy", b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"}


class Status(int):
    """A whole number of another class, as frameworks have them."""


BYTES: Final[st.SearchStrategy[Callable[[bytes], Any]]] = st.sampled_from([bytes, bytearray, memoryview])
NAMES: Final = st.builds(
    lambda kind, name: kind(name), BYTES, st.sampled_from([b"x-a", b"Content-Type", b"x", b"", b"x" * 99])
)
VALUES: Final = st.builds(lambda kind, value: kind(value), BYTES, st.binary(max_size=5))
PAIRS: Final = st.builds(lambda kind, *pair: kind(pair), st.sampled_from([tuple, list]), NAMES, VALUES)
MESSAGES: Final[st.SearchStrategy[Callable[[Any], Any]]] = st.sampled_from([dict, UserDict])
STARTS: Final = st.builds(
    lambda kind, more: kind({"type": "http.response.start", **more}),
    MESSAGES,
    st.fixed_dictionaries(
        {"status": st.sampled_from([200, HTTPStatus.CREATED, Status(204), 599, 99, 1_000])},
        optional={
            "headers": st.builds(
                lambda kind, pairs: kind(pairs), st.sampled_from([list, tuple]), st.lists(PAIRS, max_size=4)
            ),
            "trailers": st.sampled_from([False, True, 0, None]),
            "x.unknown": st.just(object()),
        },
    ),
)
BODIES: Final = st.builds(
    lambda kind, more: kind({"type": "http.response.body", **more}),
    MESSAGES,
    st.fixed_dictionaries(
        {}, optional={"body": VALUES, "more_body": st.sampled_from([False, True, 0, 1, None, "", "yes"])}
    ),
)
OTHERS: Final = st.sampled_from(
    [
        {"type": "http.response.debug", "info": {}},
        {"type": "http.response.early_hint", "links": []},
        {"type": "http.response.zerocopysend", "file": 3},
        {"type": "http.response.pathsend", "path": "/x"},
        {"type": "http.response.trailers", "headers": []},
    ]
)
OPTIONS: Final = st.fixed_dictionaries({
    "headers": st.sampled_from(["draft", "legacy", "both", None]),
    "allowlist": st.sampled_from([None, Networks(["192.0.2.77"])]),
})  # fmt: skip
CLIENTS: Final = st.sampled_from([(PEER, 1), [PEER, 1], (PEER, None), [PEER, "1"]])


async def played(messages: list[Any], options: dict[str, Any], client: Any) -> list[Message]:
    """Return what goes out when an application sends some messages for the second time."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    middleware = RateLimitMiddleware(app, limits="99/hour", limiter=Limiter(), **options)
    await send_scope(middleware, scope_of("/", client=client))
    return (await send_scope(middleware, scope_of("/", client=client))).messages


@settings(deadline=None)
@given(st.lists(OTHERS, max_size=2), STARTS, st.lists(BODIES | OTHERS, max_size=3), OPTIONS, CLIENTS)
def test_an_answer_goes_out_as_it_came_whatever_it_is_made_of(
    before: list[Any], start: Any, after: list[Any], options: dict[str, Any], client: Any
) -> None:
    given_fields = list(start.get("headers", ()))
    out = asyncio.run(played([*before, start, *after], options, client))
    place = len(before)
    others = out[:place] + out[place + 1 :]
    assert all(sent is message for sent, message in zip(others, [*before, *after], strict=True))
    told = dict(out[place])
    assert list(start.get("headers", ())) == given_fields, "a message that is sent again collects no fields"
    fields = list(told.pop("headers", ()))
    assert fields[: len(given_fields)] == given_fields
    assert all(sent is own for sent, own in zip(fields, given_fields, strict=False))
    assert {name for name, _ in fields[len(given_fields) :]} <= OURS
    assert bool(fields[len(given_fields) :]) is (options["headers"] is not None)
    assert told == {name: value for name, value in start.items() if name != "headers"}
    assert told["status"] is start["status"]
