"""Functions of a limit at an endpoint may read the body in any way, and the endpoint reads it again in any way."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, Form, Request
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from slidegate import RateLimit, RateLimitMiddleware

from ..asgi import PEER
from .limited import FORMS


async def as_stream(request: Request) -> str:
    return b"".join([part async for part in request.stream()]).decode()


async def as_form(request: Request) -> Any:
    return dict(await request.form())


async def as_body(request: Request) -> str:
    return (await request.body()).decode()


async def as_weight(request: Request) -> int:
    return len(await request.body()) and 1


async def as_json(request: Request) -> Any:
    return await request.json()


async def not_at_all(request: Request) -> str:
    return "nothing"


Read = Callable[[Request], Awaitable[Any]]
FORM, JSON = b"who=ann&more=%20x", b'{"who": "ann"}'
TEXTS: dict[bytes, tuple[str, dict[Read, Any]]] = {
    FORM: ("application/x-www-form-urlencoded", {as_form: {"who": "ann", "more": " x"}, as_body: FORM.decode()}),
    JSON: ("application/json", {as_json: {"who": "ann"}, as_body: JSON.decode()}),
}


def served(where: str, limit: RateLimit, read: Read) -> RateLimitMiddleware:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(await read(request))

    return RateLimitMiddleware(FORMS[where](limit, endpoint))


async def post(app: Any, kind: str, parts: list[bytes]) -> tuple[int, Any]:
    """Send a request whose body arrives in these parts; return the status and the JSON of its answer."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    transport = httpx.ASGITransport(app, client=(PEER, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://app.test") as client:
        answer = await client.post("/", content=body(), headers={"content-type": kind})
    return answer.status_code, answer.json() if answer.status_code == 200 else None


@given(data=st.data(), where=st.sampled_from([*FORMS]), text=st.sampled_from(sorted(TEXTS)))
async def test_whatever_reads_the_body_before_the_endpoint_reads_all_of_it(
    data: st.DataObject, where: str, text: bytes
) -> None:
    kind, values = TEXTS[text]
    reads = st.sampled_from([*values, as_stream, not_at_all])
    how = {name: data.draw(reads) for name in ("key", "cost", "when", "endpoint")}
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
    expected = {as_stream: text.decode(), not_at_all: "nothing", **values}
    seen: dict[str, Any] = {}

    def function(name: str, result: Any) -> Any:
        async def ask(request: Request) -> Any:
            seen[name] = await how[name](request)
            return result

        return ask

    limit = RateLimit("3/hour", key=function("key", "k"), cost=function("cost", 3), when=function("when", True))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    app = served(where, limit, how["endpoint"])
    assert await post(app, kind, parts) == (200, expected[how["endpoint"]])
    assert seen == {name: expected[how[name]] for name in seen}
    assert set(seen) == {"key", "cost", "when"}
    assert (await post(app, kind, parts))[0] == 429


@pytest.mark.parametrize("where", FORMS)
@pytest.mark.parametrize("read", [as_body, as_stream])
async def test_a_body_above_max_body_fails_the_function_and_reaches_the_endpoint_whole(
    where: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    async def key(request: Request) -> str:
        return str((await request.body())[:1])

    app = served(where, RateLimit("1/hour", key=key, max_body="1KB", name="all"), read)
    assert await post(app, "text/plain", [b"a" * 1_000]) == (200, "a" * 1_000)
    assert await post(app, "text/plain", [b"a" * 600, b"a" * 600, b"b"]) == (200, "a" * 1_200 + "b")
    assert "write RateLimit(..., max_body=" in caplog.text
    assert (await app.limiter.peek(PEER, "1/hour", rule="all")).remaining == 0, "it is counted by address"


async def how_many_messages(request: Request) -> int:
    count = 1
    while (await request.receive()).get("more_body"):
        count += 1
    return count


@pytest.mark.parametrize("where", FORMS)
@pytest.mark.parametrize("part", [b"", b"a"])
async def test_what_is_kept_of_a_body_does_not_grow_with_the_number_of_its_parts(where: str, part: bytes) -> None:
    limit = RateLimit("9/hour", key=as_body, cost=as_weight)
    assert await post(served(where, limit, how_many_messages), "text/plain", [b"k", *[part] * 1_000]) == (200, 1)


async def by_form(account: Annotated[str, Form()]) -> str:
    return account


async def by_json(account: Annotated[str, Body(embed=True)]) -> str:
    return account


@pytest.mark.parametrize("where", ["dependency", "decorator"])
@pytest.mark.parametrize(
    ("endpoint", "read"), [(by_json, as_json), (by_form, as_form), (by_form, as_body), (by_form, as_json)]
)
def test_what_fastapi_has_read_is_read_again_but_a_form_as_a_form_alone(
    where: str, endpoint: Any, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    async def key(request: Request) -> str:
        return str(await read(request))

    client = TestClient(RateLimitMiddleware(FORMS[where](RateLimit("2/hour", key=key), endpoint)))
    sent = "json" if endpoint is by_json else "data"
    answers = [client.post("/", **{sent: {"account": account}}) for account in "aaab"]
    fails = endpoint is by_form and read is not as_form
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429 if fails else 200]
    assert answers[0].json() == "a"
    assert ("Stream consumed" in caplog.text) is fails
