"""Functions at an endpoint read the body of the request that the endpoint gets; no body is counted as another one."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import anyio
import httpx
import pytest
from fastapi import Body, Form
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.types import Message

from slidegate import RateLimit, RateLimitMiddleware, Rule

from ..asgi import PEER, scope_of, send_scope
from ..drawing import examples
from .middlewares import FORMS, fastapi

Read = Callable[[Request], Awaitable[Any]]


async def as_form(request: Request) -> Any:
    return dict(await request.form())


async def as_body(request: Request) -> str:
    return (await request.body()).decode()


async def not_at_all(request: Request) -> str:
    return "nothing"


def served(where: str, limit: RateLimit, read: Read) -> RateLimitMiddleware:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(await read(request))

    return RateLimitMiddleware(FORMS[where](limit, endpoint))


async def post(app: Any, kind: str, parts: list[bytes], peer: str = PEER) -> tuple[int, Any]:
    """Send a request whose body arrives in these parts; return the status and the JSON of its answer."""

    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    transport = httpx.ASGITransport(app, client=(peer, 1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://app.test") as client:
        answer = await client.post("/", content=body(), headers={"content-type": kind})
    return answer.status_code, answer.json() if answer.status_code == 200 else None


# -- whatever a client sends, no account is served more often than its limit allows ------------------------------------


PADDED = json.dumps({"account": "ann", "more": "a" * 2_000_000}).encode()
FIELD = b'--cut\r\nContent-Disposition: form-data; name="account"\r\n\r\nann\r\n'
MORE = b'--cut\r\nContent-Disposition: form-data; name="more"\r\n\r\n' + b"a" * 900_000 + b"\r\n"
KINDS: dict[str, list[bytes]] = {
    "application/json": [b'{"account": "ann"}', PADDED, b" ", b"{}", b'{"account": ', b'"ann"}', b"[1]", b"\xff"],
    "application/x-www-form-urlencoded": [b"account=ann", b"&", b"more=1", b"%", b"account=ben&"],
    "multipart/form-data; boundary=cut": [
        FIELD + b"--cut--\r\n",
        FIELD,
        MORE,
        b"--cut--\r\n",
        b"odd",
        b"--cut\r\n:\r\n",
    ],
}
BODIES = st.sampled_from([*KINDS]).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.sampled_from(KINDS[kind]), max_size=4))
)
"""Bodies of which some part may be an account, and another one may be nothing that can be read."""


async def account_of(request: Request) -> str:
    if request.headers["content-type"] == "application/json":
        return str((await request.json())["account"])
    return str((await request.form())["account"])


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from([*FORMS]), st.lists(BODIES, min_size=1, max_size=4))
async def test_however_a_body_is_sent_an_account_is_served_no_more_often_than_its_limit_allows(
    where: str, bodies: list[tuple[str, list[bytes]]]
) -> None:
    app = served(where, RateLimit("2/hour", key=account_of), account_of)
    accounts = []
    for at in range(4):
        for number, (kind, parts) in enumerate(bodies):
            _, account = await post(app, kind, parts, f"192.0.2.{len(bodies) * at + number}")
            accounts.append(account)
    assert accounts.count("ann") <= 2


@pytest.mark.parametrize("where", FORMS)
async def test_a_cost_by_length_is_that_of_the_whole_body(where: str) -> None:
    async def length(request: Request) -> int:
        return len(await request.body())

    app = served(where, RateLimit("9000000/hour", cost=length), not_at_all)
    statuses = [(await post(app, "text/plain", [b"a" * 1_500_000] * 2))[0] for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]


# -- the endpoint reads what functions have read -----------------------------------------------------------------------


FORM, JSON = b"who=ann&more=%20x", b'{"who": "ann"}'
TEXTS: dict[bytes, tuple[str, dict[Read, Any]]] = {
    FORM: ("application/x-www-form-urlencoded", {as_form: {"who": "ann", "more": " x"}}),
    JSON: ("application/json", {Request.json: {"who": "ann"}, as_body: JSON.decode()}),
}


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.sampled_from([*FORMS]), st.sampled_from(sorted(TEXTS)))
async def test_an_endpoint_reads_all_of_a_body_that_was_read(data: st.DataObject, where: str, text: bytes) -> None:
    """Each reads a form as a form, or any other body as bytes or JSON, in any order."""
    kind, values = TEXTS[text]
    reads = st.sampled_from([*values, not_at_all])
    how = {name: data.draw(reads) for name in ("key", "cost", "when", "endpoint")}
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
    expected = {not_at_all: "nothing", **values}
    seen: dict[str, Any] = {}

    def function(name: str, result: Any) -> Any:
        async def ask(request: Request) -> Any:
            seen[name] = await how[name](request)
            return result

        return ask

    functions = {"key": function("key", "k"), "cost": function("cost", 3), "when": function("when", True)}
    limit = RateLimit("3/hour", **functions, name="it")
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    app = served(where, limit, how["endpoint"])
    assert await post(app, kind, parts) == (200, expected[how["endpoint"]])
    assert seen == {name: expected[how[name]] for name in functions}
    assert (await app.limiter.peek("k", "3/hour", 0, rule="it")).remaining == 0
    assert (await post(app, kind, parts))[0] == 429


@pytest.mark.parametrize("where", FORMS)
async def test_a_client_that_leaves_within_its_body_has_left_for_the_endpoint_too(where: str) -> None:
    app, has_left = served(where, RateLimit("9/hour", key=as_body), as_body), anyio.Event()
    has_left.set()
    with pytest.raises(ClientDisconnect):
        await send_scope(app, scope_of(method="POST"), b"a", more_body=True, leaves=has_left)


async def by_form(account: Annotated[str, Form()]) -> str:
    return account


async def by_json(account: Annotated[str, Body(embed=True)]) -> str:
    return account


@pytest.mark.parametrize("where", ["dependency", "decorator"])
@pytest.mark.parametrize(
    ("endpoint", "read"), [(by_json, Request.json), (by_form, as_form), (by_form, as_body), (by_form, Request.json)]
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


# -- what FastAPI reads first ------------------------------------------------------------------------------------------


def behind(where: str, **limit: Any) -> RateLimitMiddleware:
    """Return an application of FastAPI with a limit at its endpoint, in some form, or in its middleware."""
    if where == "rule":
        return RateLimitMiddleware(fastapi(by_json), rules=[Rule("*", **limit)])
    if where == "default_limits":
        return RateLimitMiddleware(fastapi(by_json), default_limits=limit["limits"])
    return RateLimitMiddleware(FORMS[where](RateLimit(**limit), by_json))


@pytest.mark.parametrize("body", ["{", "{}"])
@pytest.mark.parametrize(
    ("where", "uncounted"),
    [
        *((where, []) for where in ("rule", "default_limits")),
        *((where, ["{"]) for where in ("application", "router", "dependency", "needed")),
        ("decorator", ["{", "{}"]),
    ],
)
def test_a_body_that_fastapi_rejects_is_counted_by_what_is_asked_before(
    where: str, uncounted: list[str], body: str
) -> None:
    client = TestClient(behind(where, limits="2/hour"))
    sent = {"content": body, "headers": {"content-type": "application/json"}}
    statuses = [client.post("/", **sent).status_code for _ in range(3)]
    assert statuses == [422, 422, 422 if body in uncounted else 429]


@pytest.mark.parametrize(("where", "held"), [("rule", 1), ("dependency", 0), ("decorator", 0)])
async def test_while_a_body_comes_its_request_holds_a_permit_of_a_rule_and_none_of_a_limit_behind_it(
    where: str, held: int
) -> None:
    app, permits = behind(where, concurrency=1), list[int]()

    async def receive() -> Message:
        permits.append(app.limiter.store.permits_held())
        return {"type": "http.request", "body": b'{"account": "ann"}'}

    async def send(message: Message) -> None:
        pass

    await app(scope_of(method="POST", headers={"content-type": "application/json"}), receive, send)
    assert permits == [held]
