"""A stranger neither looks nor changes; a visitor does what its role allows; every answer has its header fields."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from slidegate import ConfigurationError, Limiter
from slidegate.admin.access import Access
from slidegate.admin.door import Door
from slidegate.admin.visitors import Visitor
from slidegate.core import StoreUnavailable
from slidegate.stores.lmdb import LmdbStore

from ..asgi import Answer, call, scope_of, send_scope
from .visits import HOST, READ_TOKEN, TOKEN, Browser, House, said, with_token

FIELDS = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
}


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
async def browser(house: House) -> Browser:
    browser = Browser(house.door)
    assert (await browser.log_in()).status == 200
    return browser


def check_fields(answer: Answer) -> None:
    assert {name: answer.headers.get(name) for name in FIELDS} == FIELDS


# -- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"does not start without a token.*secrets\.token_urlsafe\(32\)"),
        ({"token": ""}, "16 to 512 characters"),
        ({"token": "fifteen-letters"}, "16 to 512 characters.*not 15"),
        ({"token": "sixteen letters!"}, "without spaces"),
        ({"token": "schlüssel-schlüssel"}, "printable ASCII"),
        ({"token": b"bytes-are-no-text-here"}, "token: expected text"),
        ({"token": [TOKEN, None]}, "printable ASCII"),
        ({"token": TOKEN, "read_token": TOKEN}, "given twice"),
        ({"token": [f"token-number-{number:04}" for number in range(17)]}, "at most 16"),
        ({"token": TOKEN, "auth": lambda request: None}, "no tokens beside it"),
        ({"auth": "full"}, "auth: expected a function"),
        ({"token": TOKEN, "hosts": "ops.example.org"}, "hosts: expected a list"),
        ({"token": TOKEN, "hosts": ["https://ops.example.org"]}, "without a scheme"),
        ({"token": TOKEN, "hosts": [f"h{number}" for number in range(65)]}, "at most 64"),
        ({"token": TOKEN, "client": "10.0.0.0/8"}, "client: expected client_ip"),
        ({"token": TOKEN, "session": "10s"}, "session: expected 1 minute to 30 days"),
    ],
)
def test_what_cannot_work_ends_the_construction_and_shows_no_token(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        Access(House().limiter, **options)
    for token in (TOKEN, "fifteen-letters", "sixteen letters!", "schlüssel"):
        assert token not in str(raised.value)


# -- strangers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
async def test_a_stranger_is_told_to_log_in(method: str, house: House) -> None:
    answer = await Browser(house.door).send(method, "/api/items", {})
    assert answer.status == 401
    assert house.tool.changes == []
    assert house.tool.looks == 0
    check_fields(answer)


async def test_a_stranger_reads_public_files(house: House) -> None:
    answer = await Browser(house.door).send("GET", "/app.js")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"go()", "text/javascript")
    check_fields(answer)
    assert (await Browser(house.door).send("HEAD", "/app.js")).body == b""
    assert (await Browser(house.door).send("POST", "/app.js", {})).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2fetc/passwd",
        "/static/%00",
        "/app.js%00",
        "//app.js",
        "/APP.JS",
        "/apii",
        "/.git/config",
        "/" + "a" * 60_000,
        "/\ud800",
    ],
)
async def test_no_other_path_leads_to_a_file(path: str, house: House, browser: Browser) -> None:
    for visitor in (Browser(house.door), browser):
        answer = await visitor.send("GET", path)
        assert answer.status == 404
        assert b"version" not in answer.body.lower()
        check_fields(answer)


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND", ""])
async def test_other_methods_are_not_known(method: str, house: House, browser: Browser) -> None:
    assert (await browser.send(method, "/api/items")).status == 405
    assert house.tool.changes == []


async def test_a_preflight_is_told_nothing(house: House) -> None:
    headers = {"origin": "https://evil.example", "access_control_request_method": "POST"}
    answer = await Browser(house.door).send("OPTIONS", "/api/items", **headers)
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_websocket_is_refused(house: House) -> None:
    scope = scope_of("/api/items", type="websocket", headers={"host": HOST})
    assert (await send_scope(house.door, scope)).messages == [{"type": "websocket.close", "code": 1008}]


# -- roles and tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_the_full_token_changes_and_the_other_one_only_looks(method: str, house: House) -> None:
    assert (await with_token(house.door, method, "/api/items", said={"n": 1})).status == 200
    assert house.tool.changes == [{"n": 1}]
    answer = await with_token(house.door, method, "/api/items", READ_TOKEN, {"n": 2})
    assert (answer.status, said(answer)["code"]) == (403, "role")
    assert (await with_token(house.door, "GET", "/api/items", READ_TOKEN)).status == 200
    assert len(house.tool.changes) == 1


async def test_the_tool_knows_its_visitor_by_a_name_that_is_not_the_token(house: House) -> None:
    visitor = said(await with_token(house.door, "GET", "/api/items"))
    assert visitor["role"] == "full"
    assert visitor["name"].startswith("token#")
    assert TOKEN not in visitor["name"]
    assert visitor["name"] != said(await with_token(house.door, "GET", "/api/items", READ_TOKEN))["name"]


@pytest.mark.parametrize(
    "field", ["Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xff"]
)
async def test_a_wrong_token_opens_nothing(field: str, house: House) -> None:
    headers = [(b"host", HOST.encode()), (b"authorization", field.encode("latin-1"))]
    assert (await call(house.door, "/api/items", headers=headers)).status == 401


async def test_two_tokens_at_once_open_nothing(house: House) -> None:
    headers = [(b"host", HOST.encode()), *[(b"authorization", f"Bearer {TOKEN}".encode())] * 2]
    assert (await call(house.door, "/api/items", headers=headers)).status == 401


async def test_a_wrong_token_beside_a_good_session_opens_nothing(browser: Browser) -> None:
    assert (await browser.send("GET", "/api/items", authorization="Bearer wrong-wrong-wrong")).status == 401
    assert (await browser.send("GET", "/api/items")).status == 200


# -- auth=... ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["full", "read", Visitor("full", "ann\n" + "x" * 100), None])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_auth_function_says_who_comes(answer: Any, is_async: bool) -> None:
    async def later(request: Any) -> Any:
        return answer

    house = House(auth=later if is_async else lambda request: answer)
    got = await Browser(house.door).send("GET", "/api/items")
    if answer is None:
        assert got.status == 401
    else:
        assert said(got)["role"] == (answer if isinstance(answer, str) else answer.role)
        assert len(said(got)["name"]) <= 64
        assert "\n" not in said(got)["name"]


def test_workers_that_share_a_store_need_a_secret_to_sign_sessions_with(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    with pytest.raises(ConfigurationError, match=r"auth: .* sign sessions with the secret of their limiter.*secret="):
        Access(Limiter(store), auth=lambda request: None)
    workers = [Limiter(store, secret=secret) for secret in ("the secret of all workers", "the secret of others")]
    signed = [Access(limiter, auth=lambda request: None).session_key for limiter in (*workers, *workers)]
    assert signed[:2] == signed[2:]
    assert signed[0] != signed[1]
    store.close()


@pytest.mark.parametrize("answer", [True, "admin", 1, Visitor("admin", "ann"), Visitor("full", 3), ("full", "ann")])  # type: ignore[arg-type]
async def test_an_auth_function_that_says_anything_else_lets_nobody_in(answer: Any) -> None:
    house = House(auth=lambda request: answer)
    assert (await Browser(house.door).send("GET", "/api/items")).status == 500


async def test_an_auth_function_that_fails_lets_nobody_in() -> None:
    house = House(auth=lambda request: 1 / 0)  # type: ignore[arg-type,return-value]
    assert (await Browser(house.door).send("GET", "/api/items")).status == 500
    assert (await Browser(house.door).send("GET", "/api/items", authorization="Bearer x")).status == 500


async def test_a_script_that_a_function_knows_by_a_field_of_its_own_needs_no_proof() -> None:
    house = House(auth=lambda request: "full" if request.headers.get("x-key") == "right" else None)
    fields = {"host": HOST, "content-type": "application/json", "x-key": "right"}
    assert (await call(house.door, "/api/items", "POST", b"{}", headers=fields)).status == 200
    # As soon as a browser may have sent it, it does.
    for name in ("cookie", "origin", "referer", "sec-fetch-site", "sec-fetch-mode"):
        value = f"http://{HOST}" if name == "origin" else "none"
        assert (await call(house.door, "/api/items", "POST", b"{}", headers={**fields, name: value})).status == 403
    assert len(house.tool.changes) == 1


async def test_basic_authorization_is_sent_by_browsers_by_themselves_and_needs_the_proof() -> None:
    house = House(auth=lambda request: "full" if "authorization" in request.headers else None)
    browser = Browser(house.door)
    assert said(await browser.send("POST", "/api/items", {}, authorization="Basic YTpi"))["code"] == "csrf"
    assert (await browser.send("POST", "/api/items", {}, authorization="Bearer x", origin=None)).status == 200


# -- answers -------------------------------------------------------------------------------------------------------


async def test_every_answer_has_the_fields_whatever_the_tool_says() -> None:
    async def lax(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"Cache-Control", b"public"), (b"x-frame-options", b"ALLOWALL"), (b"x-own", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    house = House()
    answer = await with_token(Door(lax, house.access), "GET", "/anything")
    check_fields(answer)
    assert answer.headers["x-own"] == "1"


async def test_a_failure_shows_a_number_and_the_log_says_why(
    house: House, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await browser.send("GET", "/api/fail")
    assert answer.status == 500
    number = said(answer)["request_id"]
    assert len(number) == 16
    assert number in caplog.text
    assert b"s3cret" not in answer.body
    assert b"Traceback" not in answer.body
    assert b"Runtime" not in answer.body
    check_fields(answer)


async def test_a_store_that_does_not_answer_is_no_failure_of_ours(house: House) -> None:
    async def away(scope: Scope, receive: Receive, send: Send) -> None:
        raise StoreUnavailable("redis://user:s3cret@h:6379/0 is away")

    answer = await with_token(Door(away, house.access), "GET", "/x")
    assert (answer.status, said(answer)["code"]) == (503, "store")
    assert b"s3cret" not in answer.body


async def test_a_failure_after_the_start_reaches_the_server(house: House) -> None:
    async def halfway(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        await with_token(Door(halfway, house.access), "GET", "/x")


async def test_the_lifespan_is_that_of_the_tool(house: House) -> None:
    heard: list[str] = []

    async def tool(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(scope["type"])

    await send_scope(Door(tool, house.access), {"type": "lifespan"})
    assert heard == ["lifespan"]
