"""Only users read and change; changes come from pages of the same origin; every response has security headers."""

import json
from itertools import product
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from slidegate import SlidegateError
from slidegate.ops.dashboard.app import MAX_BODY
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock, RecordingObserver

from ...asgi import call, scope_of, send_scope
from ...redis_servers import free_port
from ...virtual_time import VirtualTime
from .site import HOST, TOKEN, VIEWS, Site, basic

BODY = b'{"key": "user:1", "duration": "1h"}'
BY_SCRIPT = {"host": HOST, "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}


async def changed(site: Site) -> bool:
    """Return whether the ban in `BODY` was made, and lift it."""
    return await site.limiter.unban("user:1")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_stranger_is_asked_for_a_token_and_learns_nothing_else(method: str, site: Site) -> None:
    for path in (*VIEWS, "api/bans", "static/page.js", "api/nothing", "nothing"):
        answer = await site.send(method, path, BODY, authorization=None, access_control_request_method="POST")
        assert (answer.status, answer.headers["www-authenticate"].split()[0]) == (401, "Basic")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert not await changed(site)


RIGHT = [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic(TOKEN), basic(TOKEN, user="")]
WRONG = ["Bearer", "Bearer ", TOKEN, f"Token {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xff"]
WRONG += [f"Basic {TOKEN}", "Basic ====", basic(TOKEN)[:-4], basic(TOKEN + "x"), basic("", user=TOKEN)]


@pytest.mark.parametrize("fields", [*([field] for field in RIGHT + WRONG), [RIGHT[0]] * 2])
async def test_only_the_token_opens_and_anything_else_is_answered_after_250_ms(fields: list[str], site: Site) -> None:
    time, is_right = VirtualTime(site.clock), fields[0] in RIGHT and len(fields) == 1
    headers = [(b"host", HOST.encode()), *((b"authorization", field.encode("latin-1")) for field in fields)]
    assert (await call(site.app, "/slidegate/", headers=headers)).status == (200 if is_right else 401)
    assert time.passed_s == pytest.approx(0 if is_right else 0.25, abs=0.001)


async def test_wrong_tokens_are_logged_once_a_minute_and_never_as_they_are(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    VirtualTime(site.clock)
    for _ in range(10):
        await site.get("", authorization="Bearer wrong-token-0123456789")
    assert "wrong-token-0" not in caplog.text
    assert caplog.text.count("wrong token") == 1


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_dashboard_that_only_shows_has_no_forms(token: Any, clock: FakeClock) -> None:
    site = Site(clock, token=token, changes=False)
    await site.limiter.ban("user:2", "1h")
    for view in VIEWS:
        page = await site.page(view)
        assert {*page.names("input", "value")} & {"ban", "unban", "change", "restore"} == set()
        assert "Read-only" in page.text


# -- which requests may change something -------------------------------------------------------------------------------

ORIGINS = [f"http://{HOST}", None, "null", "https://evil.example", f"https://{HOST}", f"http://{HOST}:8080"]
ORIGINS += [f"http://other.{HOST}", f"http://{HOST}.evil.example"]
CHOICES: dict[str, list[Any]] = {
    "origin": [*ORIGINS, f"http://{HOST}@evil.example", f"http://evil.example/{HOST}", f"ftp://{HOST}", HOST],
    "site": ["same-origin", None, "same-site", "cross-site", "none", "same-origin, none"],
    "host": [HOST, "evil.example", None, f"{HOST}, evil.example"],
    "scheme": ["http", "https"],
    "type": ["application/json", "Application/JSON; charset=utf-8", "text/plain", "text/plain;application/json", None],
    "who": ["bearer", "basic", "wrong", "nobody"],
    "body": [BODY, b"", b"a=b", b"[" * 40 + b"]" * 40],
}
WHO = {"bearer": f"Bearer {TOKEN}", "basic": basic(TOKEN), "wrong": f"Bearer {'w' * 20}", "nobody": None}


def may_change(request: dict[str, Any]) -> bool:
    """Return, as a simple model, whether a request may change something."""
    host = str(request["host"])
    own = [f"https://{host}"] + [f"http://{host}"] * (request["scheme"] == "http")
    of_page = request["site"] == "same-origin" or (request["site"] is None and request["origin"] in own)
    known = request["who"] == "bearer" or (request["who"] == "basic" and of_page)
    return known and request["body"] == BODY and request["type"] in CHOICES["type"][:2]


async def test_every_pair_of_conditions_changes_what_the_model_allows(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidegate.ops.dashboard.app.WRONG_TOKEN_S", 0)
    site = Site(clock)
    count = 0
    good = {name: choices[0] for name, choices in CHOICES.items()}
    for one, other in product(CHOICES, CHOICES):
        for who, first, second in product(WHO, CHOICES[one], CHOICES[other]):
            request = {**good, "who": who, one: first, other: second}
            fields = {"host": request["host"], "origin": request["origin"], "sec-fetch-site": request["site"]}
            fields |= {"content-type": request["type"], "authorization": WHO[request["who"]]}
            headers = {name: value for name, value in fields.items() if value is not None}
            await call(site.dashboard, "/api/bans", "PUT", request["body"], headers=headers, scheme=request["scheme"])
            assert await changed(site) == may_change(request), request
            count += may_change(request)
    assert count > 50


async def test_no_more_of_a_body_is_read_than_64_kib(site: Site) -> None:
    received, sent = list[int](), list[Message]()

    async def receive() -> Message:
        received.append(10_000)
        return {"type": "http.request", "body": b"x" * 10_000, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    await site.dashboard(scope_of("/api/bans", "PUT", headers=BY_SCRIPT), receive, send)
    assert (sent[0]["status"], len(received)) == (413, MAX_BODY // 10_000 + 1)


NO_OBJECTS = [b"", b"{", b"[]", b"null", b"\xff", b"\xef\xbb\xbf{}", b"1" * 5_000, b"[" * 60_000, b'{"key": NaN}']
NO_OBJECTS += [b'{"key": "\\ud800", "duration": "1h"}', b'{"\\udfff": 1}', b'{"key": ' + b"9" * 4_000 + b"}"]


BODIES = dict.fromkeys(NO_OBJECTS, 400)
BODIES |= {BODY[:-1].ljust(MAX_BODY - 1) + b"}": 200, BODY[:-1].ljust(MAX_BODY) + b"}": 413}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{len(body)} bytes")
async def test_body_is_an_object_of_json_and_has_at_most_64_kib(body: bytes, site: Site) -> None:
    assert (await site.send("PUT", "api/bans", body, content_type="application/json")).status == BODIES[body]
    assert await changed(site) == (BODIES[body] == 200)


async def test_client_that_disconnects_gets_no_answer_and_changes_nothing(site: Site) -> None:
    leaves = anyio.Event()
    leaves.set()
    scope = scope_of("/api/bans", "PUT", headers=BY_SCRIPT)
    assert (await send_scope(site.dashboard, scope, BODY, more_body=True, leaves=leaves)).messages == []
    assert not await changed(site)


NOWHERE = ["static/..%2f..%2fetc/passwd", "static/../app.py", "static/page.js%00", "/static/page.js", "static/PAGE.JS"]


@pytest.mark.parametrize("path", [*NOWHERE, "static/", "apii", "templates/base.html", "now", "a" * 60_000, "\ud800"])
async def test_no_other_path_leads_to_a_file_or_a_view(path: str, site: Site) -> None:
    answer = await site.get(path)
    assert answer.status == 404


async def test_head_has_the_headers_of_a_get_and_no_body(site: Site) -> None:
    for path in ("static/page.js", "api/limits", "shadow", "nothing"):
        get, head = [await site.send(method, path) for method in ("GET", "HEAD")]
        assert (head.status, head.body, head.headers["content-length"]) == (get.status, b"", str(len(get.body)))


def test_server_that_serves_the_dashboard_alone_starts_and_stops(site: Site) -> None:
    with TestClient(site.dashboard):
        pass


async def test_websocket_is_refused(site: Site) -> None:
    scope = scope_of("/", type="websocket", headers={"host": HOST})
    assert (await send_scope(site.dashboard, scope)).messages == [
        {"type": "websocket.close", "code": 1000, "reason": ""}
    ]


@pytest.mark.parametrize("root", ["", "/slidegate", "/a/b/c"])
async def test_dashboard_works_below_any_mount(root: str, site: Site) -> None:
    headers = {"host": HOST, "authorization": basic(TOKEN)}
    for path in (*VIEWS, "api/limits", "static/style.css"):
        for full in {f"{root}/{path}", f"/{path}"}:  # servers write the path with the root or without it
            assert (await call(site.dashboard, full, headers=headers, root_path=root)).status == 200
    if root:
        answer = await call(site.dashboard, root, headers=headers, root_path=root)
        assert (answer.status, answer.headers["location"]) == (307, f"{root}/")


async def test_a_failed_store_is_reported_without_its_password(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    observer, secret = RecordingObserver(), "s3cret-of-the-store"
    site = Site(clock, store=RedisStore(f"redis://user:{secret}@127.0.0.1:{free_port()}/0"))
    site.limiter.observe(observer)
    caplog.set_level("DEBUG")
    async with site.limiter as limiter:
        views = [await site.get(view) for view in VIEWS]
        operations = [f"api/{one}" for one in ("statistics", "client?key=203.0.113.7", "bans", "limits")]
        answers = [await site.get(one) for one in operations]
        answers.append(await site.send("PUT", "api/bans", BODY, content_type="application/json"))
        with pytest.raises(SlidegateError) as raised:
            await limiter.ban("198.51.100.7", "1h")
        shown = [limiter, limiter.store, site.dashboard, vars(site.dashboard), raised.value, observer.events]
        shown += [caplog.text, *((answer.start, answer.body) for answer in [*views, *answers])]
    for view in views:
        assert view.status == 200
        assert 'The store does not answer, and requests are decided by <code>on_error="local"' in view.body.decode()
    for answer in answers:
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert json.loads(answer.body) == {"error": "The store does not answer; the log says more."}
    assert not [one for one in shown if secret in f"{one} {one!r}" or TOKEN in f"{one} {one!r}"]


async def test_failure_says_nothing_of_its_cause_and_the_log_says_why(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise RuntimeError("redis://user:s3cret@h:6379/0 is away")

    monkeypatch.setattr(site.limiter, "limits", fail)
    for path in ("api/limits", "configuration"):
        answer = await site.get(path)
        assert answer.status == 500
        assert "redis://user" in caplog.text
        caplog.clear()
        for text in (b"s3cret", b"Traceback", b"Runtime"):
            assert text not in answer.body


def test_dashboard_works_under_trio() -> None:
    async def visit() -> None:
        site = Site()
        assert (await site.get("", authorization="Bearer wrong")).status == 401
        assert (await site.ask("PUT", "bans", {"key": "user:1", "duration": "1h"}))[0] == 200
        for view in VIEWS:
            await site.page(view)
        assert await changed(site)

    anyio.run(visit, backend="trio")
