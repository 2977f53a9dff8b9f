"""A stranger neither looks nor changes; a change comes from a page of this place; an answer has its header fields."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import product
from typing import Any

import anyio
import pytest
from starlette.types import Message

from slidegate import ConfigurationError
from slidegate.admin import AdminRoutes, messages
from slidegate.core import StoreUnavailable
from slidegate.dashboard import Dashboard
from slidegate.testing import FakeClock

from ..asgi import Answer, call, scope_of, send_scope
from ..remote_stores import SickStore
from .dashboard_client import (
    CHANGE,
    HOST,
    LOOK,
    NEW_BAN,
    READ_TOKEN,
    TOKEN,
    Browser,
    Site,
    logged_in,
    said,
    with_token,
)

EVIL = "https://evil.example"
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


def check_fields(answer: Answer) -> None:
    assert {name: answer.headers.get(name) for name in FIELDS} == FIELDS


# -- strangers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_a_stranger_is_told_to_log_in(method: str, site: Site) -> None:
    for path in (CHANGE, "/api/nothing"):
        answer = await Browser(site.app).send(method, path, NEW_BAN)
        assert answer.status == 401
        check_fields(answer)
    assert not await site.changed()


async def test_a_stranger_reads_public_files(site: Site) -> None:
    answer = await Browser(site.app).send("GET", "/static/app.js")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    check_fields(answer)
    head = await Browser(site.app).send("HEAD", "/static/app.js")
    assert (head.body, head.headers["content-length"]) == (b"", str(len(answer.body)))
    wrong = await Browser(site.app).send("POST", "/static/app.js", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2fetc/passwd",
        "/static/%00",
        "/static/app.js%00",
        "//static/app.js",
        "/static/APP.JS",
        "/apii",
        "/.git/config",
        "/" + "a" * 60_000,
        "/\ud800",
    ],
)
async def test_no_other_path_leads_to_a_file(path: str, site: Site) -> None:
    for visitor in (Browser(site.app), await logged_in(site)):
        answer = await visitor.send("GET", path)
        assert answer.status == 404
        assert b"version" not in answer.body.lower()
        check_fields(answer)


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND", "", "PUT"])
async def test_other_methods_are_not_known(method: str, site: Site) -> None:
    answer = await (await logged_in(site)).send(method, CHANGE)
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, PATCH, POST")


async def test_a_preflight_is_told_nothing(site: Site) -> None:
    headers = {"origin": "https://evil.example", "access_control_request_method": "POST"}
    answer = await Browser(site.app).send("OPTIONS", CHANGE, **headers)
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_websocket_is_refused(site: Site) -> None:
    scope = scope_of(LOOK, type="websocket", headers={"host": HOST})
    assert (await send_scope(site.app, scope)).messages == [{"type": "websocket.close", "code": 1008}]


async def test_a_server_that_serves_the_tool_alone_starts_and_stops(site: Site) -> None:
    sent: list[str] = []
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message["type"])

    await site.app({"type": "lifespan", "state": {}}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


# -- pages of other places -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"cookie": None}, 401, "login"),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403, "origin"),
        # Over plain http browsers send no Sec-Fetch-Site.
        ({"sec_fetch_site": None, "origin": HOST}, 403, "origin"),
        ({"sec_fetch_site": None, "origin": f"http://other.{HOST}"}, 403, "origin"),
        ({"sec_fetch_site": None, "origin": "http://www.example.org"}, 403, "origin"),
        ({"sec_fetch_site": None, "origin": f"http://{HOST}.evil.example"}, 403, "origin"),
        ({"sec_fetch_site": None, "origin": f"http://evil.example/{HOST}"}, 403, "origin"),
        ({"sec_fetch_site": None, "origin": f"http://{HOST}@evil.example"}, 403, "origin"),
        ({"sec_fetch_site": None, "origin": f"ftp://{HOST}"}, 403, "origin"),
        ({"content_type": "text/plain"}, 415, "type"),
        ({"content_type": "multipart/form-data; boundary=application/json"}, 415, "type"),
        ({"content_type": "text/plain;application/json"}, 415, "type"),
        ({"content_encoding": "gzip"}, 415, "encoding"),
        ({"host": None}, 421, "host"),
        ({"host": f"{HOST}, evil.example"}, 421, "host"),
        ({"host": f"{HOST}:x"}, 421, "host"),
        ({"host": "a" * 300}, 421, "host"),
    ],
)
async def test_a_change_with_one_thing_missing_or_wrong_is_refused(
    headers: dict[str, Any], status: int, code: str, site: Site
) -> None:
    browser = await logged_in(site)
    answer = await browser.change(**headers)
    assert (answer.status, said(answer)["code"]) == (status, code)
    assert not await site.changed()
    # The same request with everything right is a change.
    assert (await browser.change()).status == 201
    assert await site.changed()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": None},
        {"origin": EVIL},  # a proxy that asks under a name of its own: the browser has compared
        {"sec_fetch_site": None},
        {"sec_fetch_site": None, "origin": f"https://{HOST}"},
        {"sec_fetch_site": None, "origin": f"http://{HOST}:80"},
        {"sec_fetch_site": None, "origin": f"http://{HOST.upper()}."},
        {"sec_fetch_site": None, "host": f"{HOST}:80"},
        {"sec_fetch_site": None, "host": f"{HOST}:8000", "origin": f"http://{HOST}:8000"},
        {"sec_fetch_site": None, "host": "[::1]:8000", "origin": "http://[::1]:8000"},
        {"content_type": "Application/JSON; charset=utf-8"},
    ],
)
async def test_a_change_of_a_page_of_this_place_is_made(headers: dict[str, Any], site: Site) -> None:
    assert (await (await logged_in(site)).change(**headers)).status == 201


async def test_a_page_without_tls_does_not_change_what_is_asked_by_https(site: Site) -> None:
    browser = await logged_in(site, scheme="https")
    answer = await browser.change(origin=f"http://{HOST}", sec_fetch_site=None)
    assert (answer.status, said(answer)["code"]) == (403, "origin")


async def test_two_fields_of_a_name_are_not_one_of_them(site: Site) -> None:
    browser = await logged_in(site)
    fields = {"host": HOST, "origin": f"http://{HOST}", "content-type": "application/json"}
    fields["cookie"] = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    body = b'{"target": "user:1", "duration": "1h"}'
    for name, more, status in (
        ("host", HOST, 421),
        ("origin", EVIL, 403),
        ("origin", f"http://{HOST}", 403),
        ("content-type", "text/plain", 415),
        ("content-type", "application/json", 415),
    ):
        answer = await call(site.app, CHANGE, "POST", body, headers=[*pairs, (name.encode(), more.encode())])
        assert answer.status == status, name
    twice = [(b"sec-fetch-site", b"same-origin"), (b"sec-fetch-site", b"none")]
    assert (await call(site.app, CHANGE, "POST", body, headers=[*pairs, *twice])).status == 403
    assert not await site.changed()
    assert (await call(site.app, CHANGE, "POST", body, headers=pairs)).status == 201


async def test_a_script_with_a_token_needs_no_page_but_no_page_elsewhere_may_send_it(site: Site) -> None:
    assert (await with_token(site.app, "POST", CHANGE, said=NEW_BAN)).status == 201
    for more in ({"origin": EVIL}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
        answer = await with_token(site.app, "POST", CHANGE, said=NEW_BAN, **more)
        assert (answer.status, said(answer)["code"]) == (403, "origin")
        assert (await with_token(site.app, "GET", LOOK, **more)).status == 403


@pytest.mark.parametrize(
    "known_by", [{"authorization": "Basic YTpi"}, {"cookie": "own=session"}, {"x-forwarded-user": "ann"}]
)
async def test_whoever_a_function_knows_needs_a_page_of_this_place_too(
    known_by: Mapping[str, str], clock: FakeClock
) -> None:
    (name,) = known_by
    tool = AdminRoutes(Site(clock).limiter, auth=lambda request: "full" if name in request.headers else None)
    body = b'{"target": "user:1", "duration": "1h"}'
    fields = {"host": HOST, "content-type": "application/json", **known_by}
    for more, status in (
        ({}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": EVIL}, 403),
        ({"origin": f"http://{HOST}:8080"}, 403),
        ({"referer": f"http://{HOST}/"}, 403),
        ({"sec-fetch-site": "same-site", "origin": f"http://{HOST}"}, 403),
        ({"origin": f"http://{HOST}"}, 201),
        ({"sec-fetch-site": "same-origin"}, 201),
        ({"authorization": "Bearer of-a-script"}, 201),
    ):
        assert (await call(tool, "/bans", "POST", body, headers={**fields, **more})).status == status, more


async def test_a_look_from_elsewhere_is_refused_and_a_link_to_the_page_is_not(site: Site) -> None:
    browser = await logged_in(site)
    for place in ("cross-site", "same-site"):
        elsewhere = {"sec_fetch_site": place, "sec_fetch_mode": "navigate"}
        assert (await browser.send("GET", LOOK, **elsewhere)).status == 403
        assert (await browser.send("GET", "/", **elsewhere)).status == 200
        assert (await browser.send("GET", "/", sec_fetch_site=place, sec_fetch_mode="no-cors")).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": None, "origin": "https://evil.example"},
        {"sec_fetch_site": None, "origin": "null"},
        {"sec_fetch_site": None, "origin": None},
        {"sec_fetch_site": "cross-site"},
        {"content_type": "text/plain"},
        {"content_type": None},
        {"host": "evil.example", "origin": f"http://{HOST}", "sec_fetch_site": None},
    ],
)
async def test_no_page_elsewhere_logs_a_browser_in_or_out(headers: dict[str, Any], site: Site) -> None:
    answer = await Browser(site.app).send("POST", "/api/session", {"token": TOKEN}, **headers)
    assert answer.status in (403, 415)
    assert "set-cookie" not in answer.headers
    browser = await logged_in(site)
    if "content_type" not in headers:
        assert (await browser.send("DELETE", "/api/session", **headers)).status == 403
        assert (await browser.send("GET", LOOK)).status == 200


# -- the names of the place ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "host", "origin", "status"),
    [
        ([HOST], HOST, f"https://{HOST}", 201),
        ([HOST], f"{HOST}:8000", f"http://{HOST}:8000", 201),
        ([f"{HOST}:8000"], f"{HOST}:8000", f"http://{HOST}:8000", 201),
        ([f"{HOST}:8000"], f"{HOST}:8001", f"http://{HOST}:8001", 421),
        ([f"{HOST}:8000"], f"{HOST}:8000", f"http://{HOST}:8001", 403),
        ([f"{HOST}:80"], HOST, f"http://{HOST}", 201),
        # A name of somebody else that leads to our address: his page says where it comes from.
        ([HOST], "evil.example", "http://evil.example", 421),
        ([HOST], "127.0.0.1", "http://127.0.0.1", 421),
        ([HOST], HOST, "http://evil.example", 403),
        # A proxy that asks under a name of its own.
        ([HOST, "127.0.0.1"], "127.0.0.1:8000", f"https://{HOST}", 201),
        (["[::1]"], "[::1]:8000", "http://[::1]:8000", 201),
        ((), "evil.example", "http://evil.example", 201),
    ],
)
async def test_a_tool_with_hosts_is_asked_under_no_other_name(
    hosts: Any, host: str, origin: str, status: int, clock: FakeClock
) -> None:
    site = Site(clock, hosts=hosts)
    answer = await with_token(site.app, "POST", CHANGE, said=NEW_BAN, host=host, origin=origin)
    assert answer.status == status
    # Hosts are asked first: a page that has made its own name lead here is of one origin with us.
    rebound = {"host": host, "origin": origin, "sec-fetch-site": "same-origin"}
    assert (await with_token(site.app, "GET", LOOK, **rebound)).status == (421 if status == 421 else 200)
    assert await site.changed() == (status == 201)


async def test_no_file_is_handed_out_under_another_name(clock: FakeClock) -> None:
    site = Site(clock, hosts=[HOST])
    assert (await call(site.app, "/", headers={"host": "evil.example"})).status == 421
    assert (await call(site.app, "/", headers={"host": HOST})).status == 200


@pytest.mark.parametrize("name", ["x-forwarded-host", "forwarded", "x-original-host"])
async def test_nobody_forwards_another_name(name: str, site: Site) -> None:
    answer = await with_token(site.app, "POST", CHANGE, said=NEW_BAN, origin=EVIL, **{name: "evil.example"})
    assert answer.status == 403


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": HOST}, "hosts: expected a list"),
        ({"hosts": [f"https://{HOST}"]}, "without a scheme"),
        ({"hosts": [f"h{number}" for number in range(65)]}, "at most 64"),
    ],
)
def test_hosts_that_cannot_be_any_end_the_construction(options: dict[str, Any], message: str, site: Site) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Dashboard(site.limiter, token=TOKEN, **options)


# -- any request ---------------------------------------------------------------------------------------------------

CHOICES: dict[str, list[Any]] = {
    "origin": [f"http://{HOST}", f"http://{HOST}:8080", EVIL, "null", None],
    "host": [HOST, "evil.example", None],
    "site": ["same-origin", "same-site", "cross-site", "none", None],
    "type": ["application/json", "text/plain", "application/x-www-form-urlencoded", None],
    "body": [
        b'{"target": "user:1", "duration": "1h"}',
        b"",
        b"a=b",
        b"[" * 40 + b"]" * 40,
        b'"' + b"x" * 65_535 + b'"',
    ],
}
WHO = ["nobody", "session", "read session", "token", "read token", "wrong token", "old session", "forged session"]


def may_change(asked: dict[str, Any]) -> bool:
    """Say, in a few conditions, which requests change something."""
    own = asked["origin"] == f"http://{HOST}"
    elsewhere = asked["site"] in ("cross-site", "same-site") or (
        asked["site"] != "same-origin" and asked["origin"] is not None and not own
    )
    page = asked["site"] == "same-origin" or (asked["site"] is None and own)
    known = asked["who"] == "token" or (asked["who"] == "session" and page)
    sound = asked["body"] == CHOICES["body"][0] and asked["type"] == "application/json"
    return asked["host"] == HOST and not elsewhere and known and sound


async def test_every_request_with_two_conditions_chosen_freely_changes_what_it_may(clock: FakeClock) -> None:
    site = Site(clock, hosts=[f"{HOST}:80"])
    cookies = {"forged session": "slidegate_session=WyJhIiwxXQ.c2lnbmVk"}
    for who, token in (("session", TOKEN), ("read session", READ_TOKEN), ("old session", TOKEN)):
        browser = await logged_in(site, token)
        cookies[who] = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        if who == "old session":
            assert (await browser.send("DELETE", "/api/session")).status == 204
    tokens = {"token": TOKEN, "read token": READ_TOKEN, "wrong token": "w" * 20}

    async def send(asked: dict[str, Any]) -> None:
        headers = {name: asked[name] for name in ("host", "origin")}
        headers |= {"sec-fetch-site": asked["site"], "content-type": asked["type"], "cookie": cookies.get(asked["who"])}
        if asked["who"] in tokens:
            headers["authorization"] = f"Bearer {tokens[asked['who']]}"
        sent = {name: value for name, value in headers.items() if value is not None}
        await call(site.app, CHANGE, "POST", asked["body"], headers=sent)

    changed = 0
    good = {name: choices[0] for name, choices in CHOICES.items()}
    for who, one, other in product(WHO, CHOICES, CHOICES):
        clock.advance("61s")  # wrong tokens lock the right ones out for a minute
        for first, second in product(CHOICES[one], CHOICES[other]):
            asked = {**good, "who": who, one: first, other: second}
            await send(asked)
            assert await site.changed() == may_change(asked), asked
            changed += may_change(asked)
    assert changed > 50


# -- bodies --------------------------------------------------------------------------------------------------------


async def in_parts(site: Site, parts: list[Message], **headers: str) -> tuple[int | None, int]:
    """Send a body in parts; return the status of the answer, None for no answer, and how many parts were taken."""
    fields = {"host": HOST, "authorization": f"Bearer {TOKEN}", "content-type": "application/json", **headers}
    scope = scope_of(CHANGE, "POST", headers=fields)
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

    await site.app(scope, receive, keep)
    return (statuses or [None])[0], taken


def part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(("size", "status"), [(messages.MAX_BODY, 201), (messages.MAX_BODY + 1, 413)])
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_has_at_most_64_kib(size: int, status: int, announced: bool, site: Site) -> None:
    body = b'{"target": "user:1", "duration": "1h"'.ljust(size - 1) + b"}"
    parts = [part(body[:1000]), part(body[1000:]), part(b"", more=False)]
    more = {"content-length": str(size)} if announced else {}
    assert (await in_parts(site, parts, **more))[0] == status
    assert await site.changed() == (status == 201)


async def test_no_more_of_a_large_body_is_taken_than_the_bound(site: Site) -> None:
    parts = [part(b"x" * 10_000)] * 1_000
    assert await in_parts(site, parts) == (413, messages.MAX_BODY // 10_000 + 1)
    assert await in_parts(site, parts, **{"content-length": "10000000"}) == (413, 0)


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "", "9" * 5_000, "+5", "\u0661"])
async def test_a_length_that_is_none_is_refused(length: str, site: Site) -> None:
    headers = [(b"host", HOST.encode()), (b"authorization", f"Bearer {TOKEN}".encode())]
    headers += [(b"content-type", b"application/json"), (b"content-length", length.encode())]
    assert (await call(site.app, CHANGE, "POST", b"{}", headers=headers)).status == 413


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"{}{}", 400),
        (b'{"target": NaN}', 400),
        (b"-Infinity", 400),
        (b"\xff", 400),
        (b"\xef\xbb\xbf{}", 400),
        (b"1" * 5_000, 400),
        (b"[" * 60_000, 400),
        (b'{"target": "\\ud800", "duration": "1h"}', 400),
        (b'{"\\udfff": 1}', 400),
        (b'{"target": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", 422),
        (b"[]", 422),
        (b"", 422),
    ],
)
async def test_what_is_no_good_json_is_refused(body: bytes, status: int, site: Site) -> None:
    assert (await in_parts(site, [part(body, more=False)]))[0] == status


async def test_a_client_that_leaves_gets_no_answer_and_changes_nothing(site: Site) -> None:
    body = b'{"target": "user:1", "duration": "1h"}'
    assert (await in_parts(site, [part(body), {"type": "http.disconnect"}]))[0] is None
    assert not await site.changed()


async def test_a_body_that_does_not_come_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    monkeypatch.setattr(messages, "BODY_TIMEOUT_S", 0.01)
    assert (await in_parts(site, [part(b"{")]))[0] == 408


async def test_a_removal_has_its_values_in_the_address_and_needs_no_type(site: Site) -> None:
    target = {"query_string": b"target=user:1"}
    fields = {"host": HOST, "authorization": f"Bearer {TOKEN}", "content-type": "text/plain"}
    for body, content_type, status in (
        (b"", "text/plain", 200),
        (b"{}", "text/plain", 415),
        (b"{}", "application/json", 422),
    ):
        await site.limiter.ban("user:1", "1h")
        headers = {**fields, "content-type": content_type}
        assert (await call(site.app, CHANGE, "DELETE", body, headers=headers, **target)).status == status
        assert await site.changed() == (status != 200)


# -- failures ------------------------------------------------------------------------------------------------------


async def test_a_failure_shows_a_number_and_the_log_says_why(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Any) -> None:
        raise RuntimeError("redis://user:s3cret@h:6379/0 is away")

    with caplog.at_level(logging.ERROR):
        answer = await Browser(Site(clock, auth=fail).app).send("GET", LOOK)
    assert answer.status == 500
    number = said(answer)["request_id"]
    assert len(number) == 16
    assert number in caplog.text
    for text in (b"s3cret", b"Traceback", b"Runtime"):
        assert text not in answer.body
    check_fields(answer)


async def test_a_store_that_does_not_answer_is_no_failure_of_ours(clock: FakeClock) -> None:
    store = SickStore(clock)
    site = Site(clock, store)
    browser = await logged_in(site)
    store.error = StoreUnavailable("away")
    answer = await browser.send("DELETE", "/api/session")
    assert (answer.status, said(answer)["code"], answer.headers["retry-after"]) == (503, "store", "1")
    check_fields(answer)
