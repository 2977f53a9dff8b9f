"""Only users read and change; changes come from pages of the same origin; responses have security headers."""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, SlidegateError, client_ip, network
from slidegate.admin import AdminRoutes, messages
from slidegate.dashboard import Dashboard
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import Answer, call, hello, scope_of, send_scope
from ..web.test_operators import ASN, written
from .dashboard_client import CHANGE, HOST, LOOK, NEW_BAN, READ_TOKEN, TOKEN, Browser, Site, basic, said, with_token

EVIL = "https://evil.example"
BODY = b'{"target": "user:1", "duration": "1h"}'
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


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_a_stranger_is_asked_for_a_token_and_told_nothing_else(method: str, site: Site) -> None:
    for path in (CHANGE, "/", "/static/app.js", "/api/nothing"):
        answer = await Browser(site.app, token=None).send(method, path, NEW_BAN, access_control_request_method="POST")
        assert (answer.status, answer.headers["www-authenticate"].split()[0]) == (401, "Basic")
        assert not [name for name in answer.headers if name.startswith("access-control")]
        check_fields(answer)
    assert not await site.changed()


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2fetc/passwd",
        "/static/app.js%00",
        "//static/app.js",
        "/static/APP.JS",
        "/apii",
        "/bans",
        "/" + "a" * 60_000,
        "/\ud800",
    ],
)
async def test_no_other_path_leads_to_a_file(path: str, site: Site) -> None:
    answer = await Browser(site.app).send("GET", path)
    assert answer.status == 404
    check_fields(answer)


async def test_a_head_has_no_body(site: Site) -> None:
    for path in ("/static/app.js", LOOK):
        get, head = [await Browser(site.app).send(method, path) for method in ("GET", "HEAD")]
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(get.body)))


def test_a_server_that_serves_the_tool_alone_starts_and_stops(site: Site) -> None:
    with TestClient(site.app):
        pass


async def test_a_websocket_is_refused(site: Site) -> None:
    scope = scope_of(LOOK, type="websocket", headers={"host": HOST})
    assert (await send_scope(site.app, scope)).messages == [{"type": "websocket.close", "code": 1008}]


CHOICES: dict[str, list[Any]] = {
    "origin": [
        f"http://{HOST}",
        None,
        "null",
        EVIL,
        f"https://{HOST}",
        f"http://{HOST}:8080",
        f"http://other.{HOST}",
        f"http://{HOST}.evil.example",
        f"http://{HOST}@evil.example",
        f"http://evil.example/{HOST}",
        f"ftp://{HOST}",
        HOST,
    ],
    "site": ["same-origin", None, "same-site", "cross-site", "none", "same-origin, none"],
    "host": [HOST, "evil.example", None, f"{HOST}, evil.example"],
    "scheme": ["http", "https"],
    "type": ["application/json", "Application/JSON; charset=utf-8", "text/plain", "text/plain;application/json", None],
    "who": ["bearer", "basic", "reader", "wrong", "nobody"],
    "body": [BODY, b"", b"a=b", b"[" * 40 + b"]" * 40],
}
WHO = {
    "bearer": f"Bearer {TOKEN}",
    "basic": basic(TOKEN),
    "reader": f"Bearer {READ_TOKEN}",
    "wrong": f"Bearer {'w' * 20}",
    "nobody": None,
}


def may_change(asked: dict[str, Any]) -> bool:
    """Return, as a simple model, whether a request may change something."""
    own = [f"https://{HOST}"] + [f"http://{HOST}"] * (asked["scheme"] == "http")
    of_page = asked["site"] == "same-origin" or (asked["site"] is None and asked["origin"] in own)
    known = asked["who"] == "bearer" or (asked["who"] == "basic" and of_page)
    sound = asked["body"] == BODY and asked["type"] in CHOICES["type"][:2]
    return asked["host"] == HOST and known and sound


@pytest.mark.parametrize("known_by", ["token", "function"])
async def test_every_request_with_two_conditions_chosen_freely_changes_what_it_may(
    known_by: str, clock: FakeClock
) -> None:
    roles = {WHO["bearer"]: "full", WHO["basic"]: "full", WHO["reader"]: "read"}
    options: dict[str, Any] = {"auth": lambda request: roles.get(request.headers.get("authorization"))}
    site = Site(clock, hosts=[HOST.upper()], **(options if known_by == "function" else {}))
    changed = 0
    good = {name: choices[0] for name, choices in CHOICES.items()}
    for one, other in product(CHOICES, CHOICES):
        for who, first, second in product(WHO, CHOICES[one], CHOICES[other]):
            asked = {**good, "who": who, one: first, other: second}
            fields = {"host": asked["host"], "origin": asked["origin"], "sec-fetch-site": asked["site"]}
            fields |= {"content-type": asked["type"], "authorization": WHO[asked["who"]]}
            headers = {name: value for name, value in fields.items() if value is not None}
            await call(site.app, CHANGE, "POST", asked["body"], headers=headers, scheme=asked["scheme"])
            assert await site.changed() == may_change(asked), asked
            changed += may_change(asked)
    assert changed > 50


@pytest.mark.parametrize(
    ("hosts", "host", "status"),
    [
        ([HOST], HOST, 200),
        ([HOST], f"{HOST}:8000", 200),
        ([f"{HOST}:8000"], f"{HOST}:8000", 200),
        ([f"{HOST}:8000"], f"{HOST}:8001", 421),
        ([HOST], "evil.example", 421),
        ([HOST], "127.0.0.1", 421),
        (["[::1]"], "[::1]:8000", 200),
        ((), "evil.example", 200),
    ],
)
async def test_a_tool_with_hosts_is_asked_under_no_other_name_and_that_is_asked_first(
    hosts: Any, host: str, status: int, clock: FakeClock
) -> None:
    site = Site(clock, hosts=hosts)
    # After DNS rebinding, a foreign page has the same origin as the tool.
    rebound = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    for path in ("/", LOOK, "/nothing"):
        answer = await with_token(site.app, "GET", path, x_forwarded_host=HOST, **rebound)
        assert answer.status == (404 if path == "/nothing" and status == 200 else status)
        assert (await call(site.app, path, headers=rebound)).status == (401 if status == 200 else status)
    await site.limiter.ban("203.0.113.9", "1h")
    assert (await with_token(site.app, "GET", LOOK, **rebound)).status == (403 if status == 200 else status)


async def test_a_client_is_found_and_kept_out_as_the_middleware_on_the_limiter_finds_it(site: Site) -> None:
    middleware = RateLimitMiddleware(
        hello,  # the tool is not behind the middleware
        limiter=site.limiter,
        limits="99/minute",
        client=client_ip(trusted=["10.0.0.0/8"]),
        blocklist=Networks(["203.0.113.16/28"]),
        allowlist=Networks(["203.0.113.64/26", "203.0.113.18"]),
        bans=BanPolicy("20/10m", "1h"),
        ignore_checks=["SG102", "SG103"],
    )
    await site.limiter.ban("203.0.113.200", "1h")
    await site.limiter.ban("203.0.113.64/26", "1h")
    proxied = Browser(site.app, peer="10.0.0.1")
    codes = {"17": "blocked", "18": None, "200": "banned", "64": None, "33": None}
    for last, code in codes.items():
        client = f"203.0.113.{last}"
        assert (await with_token(site.app, "GET", LOOK, **{"x-forwarded-for": client})).status == 200, (
            "no proxy says it"
        )
        answer = await proxied.send("GET", LOOK, x_forwarded_for=client)
        assert (answer.status, said(answer).get("code")) == (403 if code else 200, code)
    guess = Browser(site.app, "w" * 20, peer="10.0.0.1")
    assert [await guess.look(x_forwarded_for="203.0.113.33") for _ in range(6)] == [401] * 5 + [429]
    assert await guess.look(x_forwarded_for="203.0.113.34") == 401, "each client of the proxy is counted by itself"
    own = await proxied.send("POST", CHANGE, {**NEW_BAN, "target": "203.0.113.33"}, x_forwarded_for="203.0.113.33")
    assert said(own)["code"] == "own"
    del middleware


@pytest.mark.parametrize("prefix", [24, 30, 32])
@pytest.mark.parametrize("target", ["203.0.113.9", "203.0.113.8/30", "203.0.113.0/24", "203.0.0.0/16"])
async def test_a_banned_client_is_told_so_whatever_makes_one_client(target: str, prefix: int) -> None:
    site = Site(client=client_ip(ipv4_prefix=prefix))
    await site.limiter.ban(target, "1h")
    for token in (TOKEN, None):
        for path in ("/", "/static/app.js", LOOK):
            answer = await Browser(site.app, token).send("GET", path)
            assert (answer.status, said(answer)["code"], answer.headers["retry-after"]) == (403, "banned", "3600")
    await site.limiter.ban(target, "permanent")
    assert "retry-after" not in (await Browser(site.app).send("GET", "/")).headers
    # An operator on the host can remove the ban without HTTP.
    assert await site.limiter.unban(target)
    assert await Browser(site.app).look() == 200


@pytest.mark.parametrize("prefix", [16, 32])
@pytest.mark.parametrize("peer", ["43.128.0.1", "::ffff:43.128.0.1", "2402:4e00:1:2::3"])
async def test_a_client_of_a_banned_operator_is_warned_before_and_kept_out_then(
    peer: str, prefix: int, tmp_path: Path
) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()), networks=[network(written(tmp_path / "asn.mmdb", ASN))])
    tool = Dashboard(limiter, token=TOKEN, client=client_ip(ipv4_prefix=prefix))
    own, other = Browser(tool, peer=peer), Browser(tool, peer="203.0.113.9")
    ban = {"target": "asn:132203", "duration": "1h"}
    assert said(await own.send("POST", CHANGE, ban))["code"] == "own"
    assert (await own.send("POST", CHANGE, {**ban, "force": True})).status == 201
    answer = await own.send("GET", LOOK)
    assert (answer.status, said(answer)["code"], answer.headers["retry-after"]) == (403, "banned", "3600")
    assert await other.look() == 200
    assert (await other.send("DELETE", f"{CHANGE}?target=asn:132203")).status == 200
    assert await own.look() == 200


async def in_parts(site: Site, parts: list[Message], **headers: str) -> tuple[int | None, int]:
    """Send a body in parts; return the status, or None without a response, and how many parts were read."""
    fields = {"host": HOST, "authorization": f"Bearer {TOKEN}", "content-type": "application/json", **headers}
    taken = 0
    statuses: list[int] = []

    async def receive() -> Message:
        nonlocal taken
        taken += 1
        return parts[taken - 1]

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await site.app(scope_of(CHANGE, "POST", headers=fields), receive, keep)
    return (statuses or [None])[0], taken


def part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(("size", "status"), [(messages.MAX_BODY, 201), (messages.MAX_BODY + 1, 413)])
async def test_a_body_has_at_most_64_kib_and_no_more_of_it_is_taken(size: int, status: int, site: Site) -> None:
    body = BODY[:-1].ljust(size - 1) + b"}"
    assert (await in_parts(site, [part(body[:1000]), part(body[1000:]), part(b"", more=False)]))[0] == status
    assert await site.changed() == (status == 201)
    assert await in_parts(site, [part(b"x" * 10_000)] * 1_000) == (413, messages.MAX_BODY // 10_000 + 1)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"target": NaN}', 400),
        (b"\xff", 400),
        (b"\xef\xbb\xbf{}", 400),
        (b"1" * 5_000, 400),
        (b"[" * 60_000, 400),
        (b'{"target": "\\ud800", "duration": "1h"}', 400),
        (b'{"\\udfff": 1}', 400),
        (b'{"target": ' + b"9" * 4_000 + b"}", 422),
        (b"[]", 422),
        (b"", 422),
    ],
)
async def test_what_is_no_good_json_is_refused(body: bytes, status: int, site: Site) -> None:
    assert (await in_parts(site, [part(body, more=False)]))[0] == status


async def test_a_client_that_leaves_gets_no_answer_and_changes_nothing(site: Site) -> None:
    assert (await in_parts(site, [part(BODY), {"type": "http.disconnect"}]))[0] is None
    assert not await site.changed()


async def test_a_removal_has_its_values_in_the_address_and_needs_no_type(site: Site) -> None:
    for body, content_type, status in ((b"", None, 200), (b"{}", "text/plain", 415), (b"{}", "application/json", 422)):
        await site.limiter.ban("user:1", "1h")
        answer = await Browser(site.app).send("DELETE", f"{CHANGE}?target=user:1", body, content_type=content_type)
        assert answer.status == status
        assert await site.changed() == (status != 200)


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


async def test_the_password_of_a_store_that_is_away_is_shown_nowhere(
    closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    observer, secret = RecordingObserver(), "s3cret-of-the-store"
    url = f"redis://user:{secret}@127.0.0.1:{closed_port}/0"
    async with Limiter.from_url(url, observers=[observer], deadline="5s") as limiter:
        tool = AdminRoutes(limiter, token=TOKEN)
        with caplog.at_level(logging.DEBUG):
            paths = ("config", "stats", "rules", "clients", "bans", "lists", "events", "history", "nothing")
            answers = [await with_token(tool, "GET", f"/{path}") for path in paths]
            answers.append(await with_token(tool, "POST", "/bans", said=NEW_BAN))
            with pytest.raises(SlidegateError) as raised:
                await limiter.ban("198.51.100.7", "1h")
        shown = [limiter, limiter.store, tool, vars(tool), raised.value, observer.events, caplog.text]
        shown += [(answer.start, answer.body) for answer in answers]
    refused = answers[-1]
    assert (refused.status, said(refused)["code"], refused.headers["retry-after"]) == (503, "store", "1")
    check_fields(refused)
    assert "store_failed" in str(observer.events)
    for found in shown:
        assert secret not in f"{found} {found!r}"
        assert TOKEN not in f"{found} {found!r}"
