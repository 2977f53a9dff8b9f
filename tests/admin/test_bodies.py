"""A body is JSON, small, flat enough, and whole before the tool sees it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.types import Message

from slidegate.admin import bodies

from ..asgi import call, scope_of
from .visits import HOST, TOKEN, House, said, with_token

MOST = bodies.MOST_BYTES


async def in_parts(house: House, parts: list[Message], **headers: str) -> tuple[int | None, int]:
    """Send a body in parts; return the status of the answer, None for no answer, and how many parts were taken."""
    fields = {"host": HOST, "authorization": f"Bearer {TOKEN}", "content-type": "application/json", **headers}
    scope = scope_of("/api/items", "POST", headers=fields)
    taken = 0
    statuses: list[int] = []

    async def receive() -> Message:
        nonlocal taken
        if taken == len(parts):
            await anyio.sleep_forever()
        taken += 1
        return parts[taken - 1]

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await house.door(scope, receive, keep)
    return (statuses or [None])[0], taken


def part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(("size", "status"), [(MOST, 200), (MOST + 1, 413)])
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_has_at_most_64_kib(size: int, status: int, announced: bool) -> None:
    house = House()
    body = b'"' + b"x" * (size - 2) + b'"'
    parts = [part(body[:1000]), part(body[1000:]), part(b"", more=False)]
    more = {"content-length": str(size)} if announced else {}
    assert (await in_parts(house, parts, **more))[0] == status
    assert house.tool.changes == ([body[1:-1].decode()] if status == 200 else [])


async def test_no_more_of_a_large_body_is_taken_than_the_bound() -> None:
    house = House()
    parts = [part(b"x" * 10_000)] * 1_000
    assert await in_parts(house, parts) == (413, MOST // 10_000 + 1)
    assert await in_parts(house, parts, **{"content-length": "10000000"}) == (413, 0)


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "", "9" * 5_000, "+5", "\u0661"])
async def test_a_length_that_is_none_is_refused(length: str) -> None:
    house = House()
    headers = [(b"host", HOST.encode()), (b"authorization", f"Bearer {TOKEN}".encode())]
    headers += [(b"content-type", b"application/json"), (b"content-length", length.encode())]
    assert (await call(house.door, "/api/items", "POST", b"{}", headers=headers)).status == 413
    assert house.tool.changes == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"{}{}",
        b"NaN",
        b"-Infinity",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b"1" * 5_000,
        b"[" * 33 + b"]" * 33,
        b"[" * 60_000,
        b'{"a":' * 33 + b"1" + b"}" * 33,
    ],
)
async def test_what_is_no_good_json_is_refused(body: bytes) -> None:
    house = House()
    assert (await in_parts(house, [part(body, more=False)]))[0] == 400
    assert house.tool.changes == []


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\x00<"), inner), max_leaves=12)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
@example(json.loads("[" * 32 + "]" * 32))
async def test_any_good_json_is_read_as_it_is(value: Any) -> None:
    house = House()
    assert (await in_parts(house, [part(json.dumps(value).encode(), more=False)]))[0] == 200
    assert house.tool.changes == [value]


async def test_the_tool_reads_the_same_body_again() -> None:
    house = House()
    assert (await in_parts(house, [part(b'{"n"'), part(b": 1}", more=False)]))[0] == 200
    assert house.tool.changes == [{"n": 1}]


async def test_a_client_that_leaves_gets_no_answer_and_changes_nothing() -> None:
    house = House()
    assert (await in_parts(house, [part(b'{"n"'), {"type": "http.disconnect"}]))[0] is None
    assert house.tool.changes == []


async def test_a_body_that_does_not_come_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_S", 0.01)
    house = House()
    assert (await in_parts(house, [part(b"{")]))[0] == 408


async def test_a_removal_may_have_no_body_and_no_type() -> None:
    house = House()
    answer = await with_token(house.door, "DELETE", "/api/items", **{"content-type": "text/plain"})
    assert answer.status == 200
    answer = await with_token(house.door, "DELETE", "/api/items", said={}, **{"content-type": "text/plain"})
    assert (answer.status, said(answer)["code"]) == (415, "type")
