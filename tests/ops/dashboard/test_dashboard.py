"""Only users read and change; changes come from pages of the same origin; whatever is sent gets an answer."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import cache
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin
from xml.etree import ElementTree as ET

import anyio
import anyio.lowlevel
import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Message

from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, Rule, SlidegateError, client_ip, network
from slidegate.core import Ban, logs
from slidegate.core.bans.rows import HEADER
from slidegate.core.logs import Throttle
from slidegate.dashboard import Dashboard
from slidegate.events import Event
from slidegate.ops.dashboard import counts as chart
from slidegate.ops.dashboard.app import MAX_BODY
from slidegate.ops.dashboard.page import environment
from slidegate.ops.dashboard.service import WINDOWS, Service
from slidegate.ops.dashboard.texts import grouped
from slidegate.ops.metrics import PART
from slidegate.ops.rows import share
from slidegate.ops.slices import steps_of
from slidegate.ops.statistics import EVERY_S, LoggedEvent, Statistics, Stats, Traffic
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock, RecordingObserver

from ...asgi import call, hello, page, scope_of, send_scope, statuses
from ...drawing import examples
from ...redis_servers import free_port
from ...virtual_time import VirtualTime
from ...web.middlewares import mmdb
from ..shared_rows import SharedRows, worker_of
from ..site import HOST, HOSTILE, NOW_US, SECRET, TOKEN, VIEWS, Page, Site, Visitor, basic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A fake clock, which is also the system's."""
    clock = FakeClock(NOW_US)
    for name in ("time", "monotonic"):
        monkeypatch.setattr(f"slidegate.ops.dashboard.service.{name}", lambda: clock.now_us / 1_000_000)
    return clock


@pytest.fixture
def site(clock: FakeClock) -> Site:
    return Site(clock)


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


async def test_wrong_tokens_are_logged_each_minute_and_not_shown(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    VirtualTime(site.clock)
    for _ in range(10):
        await site.get("", authorization="Bearer wrong-token-0123456789")
    assert "wrong-token-0" not in caplog.text
    assert caplog.text.count("wrong token") == 1


async def test_a_login_that_fails_lets_nobody_in_and_the_log_says_why_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_failures", Throttle())
    VirtualTime(clock)
    site = Site(clock, user=lambda request: request.session["admin"])  # no SessionMiddleware
    answers = [await site.get(path) for path in (*VIEWS, "api/bans", "static/page.js")]
    assert {answer.status for answer in answers} == {403}
    assert "SessionMiddleware" not in "".join(answer.body.decode() for answer in answers)
    assert caplog.text.count("AssertionError('SessionMiddleware must be installed") == 1


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


def may_change(request: dict[str, Any], login: bool) -> bool:
    """Return, as a simple model, whether a request may change something; with a login of the application, anybody."""
    host = str(request["host"])
    own = [f"https://{host}"] + [f"http://{host}"] * (request["scheme"] == "http")
    of_page = request["site"] == "same-origin" or (request["site"] is None and request["origin"] in own)
    known = (request["who"] == "bearer" and not login) or ((request["who"] == "basic" or login) and of_page)
    return known and request["body"] == BODY and request["type"] in CHOICES["type"][:2]


@pytest.mark.parametrize("login", [False, True])
async def test_each_pair_of_conditions_is_as_the_model_says(
    login: bool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidegate.ops.dashboard.app.WRONG_TOKEN_S", 0)
    site = Site(clock, **({"user": lambda request: "ann"} if login else {}))
    count = 0
    good = {name: choices[0] for name, choices in CHOICES.items()}
    for one, other in combinations(CHOICES, 2):
        for who, first, second in product(WHO, CHOICES[one], CHOICES[other]):
            request = {**good, "who": who, one: first, other: second}
            fields = {"host": request["host"], "origin": request["origin"], "sec-fetch-site": request["site"]}
            fields |= {"content-type": request["type"], "authorization": WHO[request["who"]]}
            headers = {name: value for name, value in fields.items() if value is not None}
            await call(site.dashboard, "/api/bans", "POST", request["body"], headers=headers, scheme=request["scheme"])
            assert await changed(site) == may_change(request, login), request
            count += may_change(request, login)
    assert count > 50


async def test_no_more_of_a_body_is_read_than_64_kib(site: Site) -> None:
    received, sent = list[int](), list[Message]()

    async def receive() -> Message:
        received.append(10_000)
        return {"type": "http.request", "body": b"x" * 10_000, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    await site.dashboard(scope_of("/api/bans", "POST", headers=BY_SCRIPT), receive, send)
    assert (sent[0]["status"], len(received)) == (413, MAX_BODY // 10_000 + 1)


NO_OBJECTS = [b"", b"{", b"[]", b"null", b"\xff", b"\xef\xbb\xbf{}", b"1" * 5_000, b"[" * 60_000, b'{"key": NaN}']
NO_OBJECTS += [b'{"key": "\\ud800", "duration": "1h"}', b'{"\\udfff": 1}', b'{"key": ' + b"9" * 4_000 + b"}"]


BODIES = dict.fromkeys(NO_OBJECTS, 400)
BODIES |= {BODY[:-1].ljust(MAX_BODY - 1) + b"}": 200, BODY[:-1].ljust(MAX_BODY) + b"}": 413}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{len(body)} bytes")
async def test_body_is_an_object_of_json_and_has_at_most_64_kib(body: bytes, site: Site) -> None:
    assert (await site.send("POST", "api/bans", body, content_type="application/json")).status == BODIES[body]
    assert await changed(site) == (BODIES[body] == 200)


async def test_what_is_no_whole_request_is_answered_as_a_server_wants_it_and_changes_nothing(site: Site) -> None:
    with TestClient(site.dashboard):  # a lifespan
        pass
    handshake = await send_scope(site.dashboard, scope_of("/", type="websocket", headers={"host": HOST}))
    assert handshake.messages == [{"type": "websocket.close", "code": 1000, "reason": ""}]
    assert [(await site.get(path)).status for path in ("a" * 60_000, "\ud800")] == [404, 404]
    leaves = anyio.Event()
    leaves.set()
    scope = scope_of("/api/bans", "POST", headers=BY_SCRIPT)
    assert (await send_scope(site.dashboard, scope, BODY, more_body=True, leaves=leaves)).messages == []
    assert not await changed(site)


async def test_head_has_the_headers_of_a_get_and_no_body(site: Site) -> None:
    for path in ("static/page.js", "api/limits", "bans", "nothing"):
        get, head = [await site.send(method, path) for method in ("GET", "HEAD")]
        assert (head.status, head.body, head.headers["content-length"]) == (get.status, b"", str(len(get.body)))


@pytest.mark.parametrize("root", ["", "/slidegate", "/a/b/c"])
async def test_dashboard_works_below_any_mount(root: str, site: Site) -> None:
    headers = {"host": HOST, "authorization": basic(TOKEN)}
    for path in (*VIEWS, "api/limits", "static/style.css"):
        for full in {f"{root}/{path}", f"/{path}"}:  # servers write the path with the root or without it
            assert (await call(site.dashboard, full, headers=headers, root_path=root)).status == 200
        raw = f"{root}/{path}".encode()  # Litestar hands on the rest of the path, with a slash at its end
        answer = await call(site.dashboard, f"/{path}/".replace("//", "/"), headers=headers, raw_path=raw)
        assert answer.status == 200, path
    for scope in [{"path": root, "root_path": root}, {"path": "/", "raw_path": root.encode()}] if root else ():
        answer = await call(site.dashboard, headers=headers, **scope)
        assert (answer.status, urljoin(root, answer.headers["location"])) == (307, f"{root}/")


async def test_a_failed_store_is_shown_without_its_password(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    observer, secret = RecordingObserver(), "s3cret-of-the-store"
    site = Site(clock, store=RedisStore(f"redis://user:{secret}@127.0.0.1:{free_port()}/0"))
    site.limiter.observe(observer)
    caplog.set_level("DEBUG")
    async with site.limiter as limiter:
        views = [await site.get(view) for view in VIEWS]
        operations = [f"api/{one}" for one in ("statistics", "client?key=203.0.113.7", "bans", "limits")]
        answers = [await site.get(one) for one in operations]
        answers.append(await site.send("POST", "api/bans", BODY, content_type="application/json"))
        with pytest.raises(SlidegateError) as raised:
            await limiter.ban("198.51.100.7", "1h")
        shown = [limiter, limiter.store, site.dashboard, vars(site.dashboard), raised.value, observer.events]
        shown += [caplog.text, *((answer.start, answer.body) for answer in [*views, *answers])]
    said = r"The store is away since <time [^>]*>[-0-9 :]+</time> \(StoreUnavailable.*Error 111.*\): "
    assert re.search(said + "each worker counts alone; its bans do not hold", views[0].body.decode())
    assert [view.status for view in views] == [200] * len(views)
    for view in views[1:]:
        assert "The store does not answer." in view.body.decode()
    for answer in answers:
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert json.loads(answer.body) == {"error": "The store does not answer; the log says more."}
    assert not [one for one in shown if secret in f"{one} {one!r}" or TOKEN in f"{one} {one!r}"]


async def test_failure_says_nothing_of_its_cause_and_the_log_says_why_without_passwords(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise RuntimeError("redis://user:s3cret@h:6379/0 is away")

    monkeypatch.setattr(site.limiter, "limits", fail)
    monkeypatch.setattr(logs, "_failures", Throttle())  # another test may just have had such a line
    for path in ("api/limits", "configuration"):
        answer = await site.get(path)
        assert answer.status == 500
        for text in (b"s3cret", b"Traceback", b"Runtime"):
            assert text not in answer.body
    assert "s3cret" not in caplog.text
    assert caplog.text.count("is away") == 1  # in a minute


def test_dashboard_works_under_trio_and_without_a_middleware() -> None:
    async def visit() -> None:
        site, alone = Site(), Dashboard(Limiter(), token=TOKEN)
        assert (await site.get("", authorization="Bearer wrong")).status == 401
        assert (await site.ask("POST", "bans", {"key": "user:1", "duration": "1h"}))[0] == 200
        await site.page("clients?key=user:1")
        for view in VIEWS:
            await site.page(view)
            assert (await call(alone, f"/{view}", headers={"authorization": basic(TOKEN)})).status == 200
        assert await changed(site)
        await site.visit(times=PART + 2)
        await Statistics.of(site.limiter).end()
        found = (await Statistics.of(site.limiter).read()).total
        assert (found.passed, found.refused) == (20, PART - 18)

    anyio.run(visit, backend="trio")


# -- what the dashboard reads and changes: sums, snapshots, keys of any characters, and whatever else is sent ----------


async def read(site: Site, path: str, **query: str) -> Any:
    status, found = await site.ask("GET", path, **query)
    assert status == 200, found
    return found


@pytest.mark.parametrize("window", WINDOWS)
async def test_rates_of_a_window_are_over_the_time_that_was_seen_of_its_steps(window: str, site: Site) -> None:
    await site.visit(times=23)
    await Statistics.of(site.limiter).publish()
    site.clock.advance("50s")
    found = await read(site, "statistics", window=window)
    assert len(found["steps"]) == {"5m": 71, "1h": 12, "6h": 72, "24h": 288}[window], "beyond 5 min of five minutes"
    last_at = found["start_at"] + found["step_s"] * len(found["steps"])
    assert last_at - found["step_s"] <= found["at"] == site.clock() / 1_000_000 <= last_at
    counted = [sum(step[name] for step in found["steps"]) for name in ("passed", "refused", "shadow_refused")]
    assert (counted, len(found["workers"]), found["seen_s"]) == ([20, 3, 18], 1, 50)
    assert "counting for 50 s Requests: 23 27.6 a minute" in (await site.page(f"?window={window}")).text


@pytest.mark.parametrize("key", [*HOSTILE, "x" * 64])
async def test_keys_of_any_characters_are_found_lifted_and_shown_as_text_in_every_view(key: str, site: Site) -> None:
    status, _ = await site.ask("POST", "bans", {"key": key, "duration": "1h"})
    assert status == (200 if key.startswith("user:") else 400)
    await site.limiter.unban(key)
    await site.limiter.hit(key, "5/minute", rule="all")
    keyed = RateLimitMiddleware(hello, rules=[Rule("*", "1/minute", key=lambda _: key)], limiter=site.limiter)
    tried = Rule("*", "1/minute", key=lambda _: key, shadow=True, name="tried")
    shadow = RateLimitMiddleware(hello, rules=[tried], limiter=site.limiter)
    assert await statuses(keyed, 2) == [200, 429]
    assert await statuses(shadow, 2) == [200, 200]
    assert [one["details"]["status"] for one in (await read(site, "client", key=key))["refusals"]] == ["429"]
    assert f"./clients?{urlencode({'key': key})}" in (await site.page("?rule=tried")).names("a", "href")
    status, _ = await site.ask("POST", "bans", {"key": key, "duration": "1h", "reason": key})
    assert status == 200  # as it is counted
    await site.limiter.ban(key, "1h", reason=key, by=key)
    site.clock.advance("2s")  # it was not the dashboard that banned it, which asks again
    (ban,) = (await read(site, "bans"))["bans"]
    assert ban["key"] == key
    assert ban["reason"].isprintable()
    seen = await read(site, "client", key=key)
    assert (seen["key"], seen["ban"]["key"]) == (key, key)
    await site.visit(f"/{key}", times=25)
    site.clock.advance("10s")
    wrong = await site.submit("bans", do="ban", kind="", value=key, duration=key, reason=key)
    assert wrong.status == 400
    for shown in [Page(wrong), *[await site.page(view) for view in [*VIEWS, f"clients?key={quote(key, safe='')}"]]]:
        tags = Counter(tag for tag, _ in shown.tags)
        assert (tags["script"], tags["img"], tags["iframe"], tags["object"]) == (1, 0, 0, 0)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown.text)
        assert "49" not in shown.names("a", "href")
    assert await site.ask("DELETE", "bans", key=key) == (200, {"key": key})
    assert (await site.ask("DELETE", "bans", key=key))[0] == 404


async def test_64_kib_of_a_key_are_digested_or_refused_and_never_shown(site: Site) -> None:
    long = "user:" + "<script>" * 8_192
    await site.limiter.hit(long, "5/minute", rule="all")
    assert await site.visit("/api/a", x_api_key="k" * 60_000) == [200]
    page = (await site.get("clients")).body.decode()
    assert "header:x-api-key#" in page
    assert "kkkk" not in page
    status, found = await site.ask("POST", "bans", {"key": long[:60_000], "duration": "1h"})
    assert (status, found["key"][:5], len(found["key"])) == (200, "long#", 37)
    assert (await site.ask("POST", "bans", {"key": long, "duration": "1h"}))[0] == 413


FALLBACK = "7919/13m"
"""Limits that no other rule of a test has."""


@pytest.mark.parametrize("where", ["rule", "shadow", "default_limits", "endpoint"])
async def test_the_fallback_of_a_function_is_nowhere_the_limit_of_a_client(where: str, clock: FakeClock) -> None:
    def plan(request: Request) -> str:
        return "600/minute"

    planned = Rule("*", plan, fallback_limits=FALLBACK, key=lambda _: "user:bob", name="plan", shadow=where == "shadow")
    exempt = Rule("/slidegate/{rest:path}", exempt=True)
    site = Site(clock, middleware={"rules": [exempt, planned] if where in ("rule", "shadow") else [exempt]})
    if where == "default_limits":
        site = Site(clock, middleware={"rules": [exempt], "default_limits": plan})
    limited = RateLimit(limits=plan, fallback_limits=FALLBACK, key=lambda _: "user:bob", name="plan")
    if where == "endpoint":
        site.app.router.routes.insert(0, Route("/", limited(page)))
    assert await site.visit("/", times=100) == [200] * 100
    key = "203.0.113.9" if where == "default_limits" else "user:bob"
    view = await site.limiter.inspect(key)
    assert view.windows == ()
    assert len(view.by_function) == 1
    (label,) = view.by_function
    found = await read(site, "client", key=key)
    seen = [row["what"] for row in found["rows"] if row["rule"] == label]
    assert seen == ([] if where == "shadow" else ["600/1m"])  # as statistics, which count no shadow rules, have seen it
    shown = [json.dumps(await read(site, "limits")), json.dumps(await read(site, "client", key=key)), repr(view)]
    shown += [(await site.page(one)).text for one in (*VIEWS, f"clients?key={quote(key)}")]
    wrong = re.compile(r"7919|7,919|\b13 ?m|\b60/1m|/ 60\b")  # that of `default_limits` cannot be chosen
    assert [wrong.findall(text) for text in shown] == [[]] * len(shown)
    assert all("by a function" in text for text in (shown[0], (await site.page("configuration")).text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = ["window", "key", "name", "value", "duration", "reason", "limit", "q"]
VALUES = st.sampled_from(["1h", "5m", "0", "1", "203.0.113.7", "user:42", "header:X-A", "all"]) | st.text(max_size=9)
OPERATIONS = [("GET", "bans"), ("POST", "bans"), ("DELETE", "bans"), ("GET", "limits"), ("PUT", "limits")]
OPERATIONS.append(("DELETE", "limits"))


@given(
    st.sampled_from([*OPERATIONS, ("GET", "statistics"), ("GET", "client")]),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    JSON.filter(lambda body: body is not None) | st.dictionaries(st.sampled_from(NAMES), JSON | VALUES, max_size=4),
)
async def test_whatever_is_sent_gets_an_answer(operation: tuple[str, str], query: dict[str, str], body: Any) -> None:
    method, name = operation
    if method in ("PUT", "POST"):
        status, found = await Site().ask(method, name, body)
    else:
        status, found = await Site().ask(method, name, **query)
    assert status in (200, 400, 404), found
    assert (status == 200) == ("error" not in found)
    assert status == 200 or (list(found) == ["error"] and found["error"].isprintable())


shared_site = cache(Site)
"""One for all examples: the templates of a dashboard take longer than a form."""


@given(
    st.sampled_from(VIEWS),
    st.sampled_from(["ban", "unban", "override", "restore", "find"]),
    st.dictionaries(st.sampled_from([*NAMES, "kind", "source"]), VALUES, max_size=4),
)
async def test_whatever_a_form_has_it_leads_on_or_says_why_not(view: str, do: str, fields: dict[str, str]) -> None:
    answer = await shared_site().submit(view, do=do, **fields)
    assert answer.status in (303, 400, 404)
    assert answer.status == 303 or [*filter(None, Page(answer).alerts)]


# -- pages: charts, sizes, the policy that browsers enforce, texts of clients as text, secrets, and numbers ------------


async def test_page_of_a_view_is_small_and_asks_no_other_place(site: Site) -> None:
    for number in range(30):
        await site.visit("/articles/a", times=number % 12, client=f"198.51.100.{number}")
    files = {"static/page.js": 5_500, "static/style.css": 15_000, "static/icon.svg": 1_000}
    for name, most in [*files.items(), *((view, 30_000) for view in (*VIEWS, "?rule=all", "?route=GET /"))]:
        body = (await site.get(name)).body
        assert len(body) <= most, name
        text = body.decode()
        assert {*re.findall(r"https?://[^\s\"'`)<]+", text)} <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"""(?:src|href|from|import)\s*=?\s*["'(]//""", text)


async def test_a_dashboard_that_only_shows_has_no_form_for_a_change(clock: FakeClock) -> None:
    site = Site(clock, changes=False)
    await site.visit(times=60, client="198.51.100.1")  # which the line on top accuses
    await site.limiter.override("all", "30/minute", "1h")
    await site.limiter.ban("203.0.113.9", "1h")
    for view in (*VIEWS, "clients?key=203.0.113.9"):
        page = await site.page(view)
        assert {*page.names("input", "value")} <= {"", "find"}
        assert "Read-only" in page.text


async def test_the_script_is_javascript(clock: FakeClock) -> None:
    import tree_sitter_javascript  # not every Python has them
    from tree_sitter import Language, Parser

    script = (await Site(clock).get("static/page.js")).body
    assert not Parser(Language(tree_sitter_javascript.language())).parse(script).root_node.has_error


async def test_no_request_waits_until_a_template_is_compiled(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(clock)
    monkeypatch.setattr(jinja2.Environment, "compile", None)  # so that a template that is not compiled fails
    for view in (*VIEWS, "clients?key=user:1"):
        await site.page(view)
    assert (await site.get("nothing")).status == 404


SPELLED = ("2001:db8::1", "2001:0DB8:0::1", "2001:db8::1/128", "203.0.113.9", "::ffff:203.0.113.9")


@pytest.mark.parametrize("ipv6_prefix", [48, 64, 96, 128])
@pytest.mark.parametrize("ipv4_prefix", [24, 32])
@pytest.mark.parametrize("typed", SPELLED)
async def test_a_client_is_found_as_counted(ipv4_prefix: int, ipv6_prefix: int, typed: str, clock: FakeClock) -> None:
    prefixes = client_ip(ipv4_prefix=ipv4_prefix, ipv6_prefix=ipv6_prefix)
    site = Site(clock, middleware={"client": prefixes, "rules": [Rule("*", "20/minute", name="all")]})
    await site.visit(times=3, client=typed.removesuffix("/128"))
    (counted,), _ = await Statistics.of(site.limiter).clients()
    answer = await site.submit("clients", do="find", value=typed)
    page = await site.page(answer.headers["location"].removeprefix("./"))
    assert counted.key in page.names("section", "data-key")
    assert "3 / 20" in page.text
    (row,) = [row for row in (await read(site, "client", key=typed))["rows"] if row["what"] == "20/1m"]
    assert (row["key"], row["window"]["used"]) == (counted.key, 3)


LENGTHS = st.none() | st.sampled_from(["1h", "2h", "permanent"])


@settings(max_examples=examples(50))
@given(LENGTHS, LENGTHS, LENGTHS, LENGTHS, LENGTHS, st.booleans())
async def test_the_ban_of_a_client_is_that_which_refuses_it(
    tmp_path_factory: pytest.TempPathFactory, own: Any, wide: Any, hosts: Any, operator: Any, user: Any, by_policy: bool
) -> None:
    """A view has all bans, and finds among them what the store would find."""
    file = mmdb(tmp_path_factory.mktemp("files") / "asn.mmdb", {"203.0.0.0/16": {"autonomous_system_number": 64496}})
    limiter = Limiter(networks=[network(file)])
    bans = {"203.0.113.7": own, "203.0.113.0/24": hosts, "203.0.0.0/16": wide, "asn:64496": operator, "user:ann": user}
    for key, length in bans.items():
        if length is not None:
            await limiter.ban(key, length)
    if by_policy:
        await limiter.strike("203.0.113.0/24", BanPolicy("1/1m", "90m"))
    for key in ("203.0.113.7", "203.0.113.0/24", "203.0.113.128/25", "203.0.7.1", "192.0.2.1", "user:ann", "user:eve"):
        found, refusing = (await Service(limiter).client(key)).ban, await limiter.banned(key)
        assert (found and found.until) == (refusing and refusing.until), key  # of several for ever, it may be any
        assert (found is None) == (refusing is None), key


async def test_an_operator_of_several_clients_has_their_counts(tmp_path: Path) -> None:
    """Beside their networks, of which none here has several."""
    file = mmdb(tmp_path / "asn.mmdb", {"203.0.0.0/16": {"autonomous_system_number": 64496}})
    limiter = Limiter(networks=[network(file)])
    service, app = Service(limiter), RateLimitMiddleware(hello, limits="2/hour", limiter=limiter)
    for client in ("203.0.113.1", "203.0.7.1", "203.0.113.1", "192.0.2.1", "203.0.113.1"):
        await call(app, client=(client, 1))
    (row,) = await service.networks()
    assert (row.key, row.refused, row.requests, row.caution) == ("asn:64496", 1, 4, "at least 2 clients")


async def test_the_only_client_that_is_refused_is_on_both_pages_however_many_are_busier(clock: FakeClock) -> None:
    rules = [Rule("/login", "5/minute", name="login"), Rule("*", "20/minute", name="all")]
    site = Site(clock, middleware={"rules": rules})
    for number in range(30):
        await site.visit(times=12, client=f"192.0.2.{number}")
    await site.visit("/login", times=8, client="198.51.100.7")
    for view in ("", "clients"):
        assert "198.51.100.7" in (await site.page(view)).names("tr", "data-key"), view


@pytest.fixture
def reads(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of rows that are read from the store, while others come in between."""
    reads, read = list[str](), site.limiter.rows

    async def noted(kind: str, *numbers: int) -> Any:
        reads.append(kind)
        await anyio.lowlevel.checkpoint()
        return await read(kind, *numbers)

    monkeypatch.setattr(site.limiter, "rows", noted)
    return reads


async def test_viewers_share_what_is_read_from_the_store(site: Site, reads: list[str]) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(20):
            for view in ("", "clients", "bans"):
                group.start_soon(site.page, view)
    assert sorted(reads) == sorted({*reads})


def trips_of(site: Site, patch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note what the store is asked, by round trip: an answer comes when everybody waits for one."""
    trips, asked, command = list[list[str]](), list[str](), site.limiter.engine.command

    async def noted(ask: Callable[[], Any], *more: Any) -> Any:
        asked.append(getattr(ask, "__qualname__", str(ask)))
        if len(asked) == 1:
            for _ in range(1_000):
                await anyio.lowlevel.checkpoint()
            trips.append(asked.copy())
            asked.clear()
        while asked:
            await anyio.lowlevel.checkpoint()
        return await command(ask, *more)

    patch.setattr(site.limiter.engine, "command", noted)
    patch.setattr(site.limiter.engine.rows, "_command", noted)
    return trips


@pytest.mark.parametrize(
    "view", [*VIEWS, "?rule=all", "?rule=tighter", "clients?key=198.51.100.0", "api/summary", "api/networks"]
)
async def test_a_view_asks_few_questions_for_any_number_of_clients_in_few_round_trips(
    view: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = []
    for clients in (1, 60):
        for number in range(clients):
            await site.visit(times=22, client=f"198.51.100.{number}", x_api_key=f"k{number}")
            await site.limiter.ban(f"198.51.100.{number}", "1h")
        await Statistics.of(site.limiter).publish()
        site.clock.advance("10s")
        path, _, query = view.partition("?")
        headers = {"host": HOST, "authorization": basic(TOKEN)}
        with monkeypatch.context() as patch:
            trips = trips_of(site, patch)
            assert (await call(site.dashboard, f"/{path}", headers=headers, query_string=query.encode())).status == 200
        # The time is asked once; a timer may write meanwhile, and ask for it, too.
        numbers.append(1 + len([one for trip in trips for one in trip if "time" not in one and "write" not in one]))
        # The time, what this worker writes, what all have written; then the windows of a client.
        assert len(trips) <= 3 + ("key" in query), trips
    assert numbers[1] <= numbers[0] <= 8, trips


@pytest.mark.parametrize("window", ["5m", "1h"])
async def test_an_answer_is_shared_for_two_seconds(window: str, site: Site, reads: list[str]) -> None:
    for pause_us, times in ((0, 1), (0, 1), (1_999_999, 1), (1, 2)):
        site.clock.advance(us=pause_us)
        assert (await site.get(f"api/statistics?window={window}")).status == 200
        assert len([kind for kind in reads if kind == steps_of(window, NOW_US)[0]]) == times
        assert (await site.page(f"?window={window}")).text


async def test_an_answer_that_took_three_seconds_is_shared_for_twelve(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow() -> list[Any]:
        site.clock.advance("3s")
        reads.append(site.clock.now_us)
        return []

    reads, service = list[int](), Service(site.limiter)
    monkeypatch.setattr(site.limiter, "history", slow)
    for pause_us, times in ((0, 1), (11_999_999, 1), (1, 2)):
        site.clock.advance(us=pause_us)
        await service.history()
        assert len(reads) == times


async def test_a_change_is_shown_though_another_viewer_still_reads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    read, changed = anyio.Event(), anyio.Event()

    async def bans() -> AsyncIterator[Ban]:
        for ban in [one async for one in Limiter.bans(site.limiter)]:
            yield ban
        read.set()
        await changed.wait()

    monkeypatch.setattr(site.limiter, "bans", bans)
    async with anyio.create_task_group() as group:
        group.start_soon(site.page, "bans")
        await read.wait()
        assert (await site.submit("bans", do="ban", value="198.51.100.1", duration="1h")).status == 303
        changed.set()
    assert "198.51.100.1 0" in (await site.page("bans")).names("tr", "data-key")


async def test_a_refused_change_of_a_client_shows_it_again_and_a_refused_search_shows_nobody(site: Site) -> None:
    answer = await site.submit("clients?key=198.51.100.1", do="ban", value="198.51.100.1", duration="soon")
    assert (answer.status, Page(answer).lines.count("198.51.100.1")) == (400, 1)
    answer = await site.submit("clients", do="find", value="198.51.100.O")
    assert (answer.status, Page(answer).lines.count("198.51.100.O")) == (400, 0)


async def test_limits_of_one_name_and_bans_of_one_key_are_rows_of_their_own(site: Site) -> None:
    _inner = RateLimitMiddleware(page, limiter=site.limiter, rules=[Rule("*", "9/hour", name="all")])
    _tried = RateLimitMiddleware(
        page, limiter=site.limiter, rules=[Rule("*", "9/hour", name="all", shadow=True)], name="tried"
    )
    bans = [Ban("203.0.113.0/24", "", by, level, 0, None) for level, by in enumerate(("ann", "abuse"))]
    await site.limiter.import_bans(map(json.dumps, [HEADER, *(ban._asdict() for ban in bans)]))
    rows = {view: (await site.page(view)).names("tr", "data-key") for view in ("bans", "configuration")}
    assert len({key for key in rows["bans"] if key.startswith("203.0.113.0/24")}) == 2
    assert len({key for key in rows["configuration"] if key.startswith("all")}) == 3
    twins = [RateLimitMiddleware(hello, limiter=site.limiter, limits="9/hour") for _ in range(2)]
    assert [await statuses(twin, 1, client=("192.0.2.9", 1)) for twin in twins] == [[200], [200]]
    assert (await site.page("clients?key=192.0.2.9")).names("section", "data-key") == ["192.0.2.9"]  # no window's


# -- charts are well-formed, stay inside their place, and show the numbers that they are made of -----------------------


def traffic(passed: int, limited: int, banned: int, blocked: int) -> Traffic:
    return Traffic(passed=passed, refused=limited + banned + blocked, banned=banned, blocked=blocked)


STEPS = st.lists(st.builds(traffic, *[st.integers(0, 10**9)] * 4), min_size=1, max_size=80)
STEP_S = st.sampled_from([5.0, 60.0, 300.0, 1_200.0])


def counts(steps: list[Traffic], step_s: float = 5.0) -> chart.Counts:
    start_at = 1_800_000_000.0
    at = start_at + step_s * (len(steps) - 0.5)
    return chart.Counts("5m", Stats(int(step_s * 1e6), 0, Traffic(), {}, {}, steps, []), start_at, at)


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.e+-]+) ([\d.e+-]+)", path)]


def drawing(macro: str, *values: Any) -> ET.Element:
    """Return what a macro of the templates draws."""
    return ET.fromstring(f"<div>{getattr(environment().get_template('macros.html').module, macro)(*values)}</div>")


def drawn(curve: chart.Curve) -> tuple[list[float], ET.Element, list[float]]:
    """Return the labels of the values, the drawing, and its width and height."""
    values, lines = drawing("plot", curve)
    ticks = [float((label.text or "").replace(",", "")) for label in values]
    return ticks, lines, [*map(float, lines.attrib["viewBox"].split()[2:])]


@given(STEPS, STEP_S)
def test_curve_of_any_numbers_is_well_formed_inside_its_place_and_stacked_in_the_order_of_the_legend(
    steps: list[Traffic], step_s: float
) -> None:
    done = steps[:-1] if step_s == 5.0 else steps
    marks = [(1_800_000_000 + number * step_s, "ban") for number in (-1, 0, 0.5, 200)]
    curve, tops = chart.curve_of(counts(steps, step_s), marks), dict[str, list[float]]()
    _, lines, (wide, high) = drawn(curve)
    assert wide == max(len(done), 1)
    for path in lines.iter("path"):
        for x, y in points(path.attrib["d"]):
            assert 0 <= x <= wide
            assert -0.01 <= y <= high
        if path.attrib["class"].startswith("line"):
            tops[path.attrib["class"].split()[1]] = [y for _, y in points(path.attrib["d"])]
    assert len([one for one in lines.iter("path") if one.attrib["class"] == "mark ban"]) == bool(done)
    assert b"nan" not in ET.tostring(lines)
    series = ["s0"] + [f"s{n}" for n in (1, 2, 3) if any(getattr(step, chart.SERIES[n]) for step in done)]
    assert {*tops} == ({*series} if done else set())
    for below, above in pairwise(tops[name] for name in series if done):
        assert all(high <= low + 0.01 for low, high in zip(below, above, strict=True))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("passed", ["1s", "20s", "50s"])
async def test_a_curve_shows_all_requests_that_its_tile_counts(window: str, passed: str, site: Site) -> None:
    """But those of the running five seconds, most of which are not written yet."""
    for _ in range(3):
        await site.visit(times=4)
        await Statistics.of(site.limiter).publish()
        site.clock.advance(passed)
    found = await Service(site.limiter).counts(window)
    step_s = found.stats.step_us / 1_000_000
    ticks, lines, (_, high) = drawn(chart.curve_of(found, []))
    (line,) = [path for path in lines.iter("path") if path.attrib["class"] == "line s0"]
    running_s = found.at - found.start_at - step_s * (len(found.stats.steps) - 1)
    lengths_s = [step_s] * (len(found.stats.steps) - 1) + [min(max(running_s, EVERY_S), step_s)] * (step_s > EVERY_S)
    rates = [ticks[-1] * (high - y) / high / 60 for _, y in points(line.attrib["d"])]
    last = found.stats.steps[-1].passed if step_s == EVERY_S else 0
    shown = sum(rate * length_s for rate, length_s in zip(rates, lengths_s, strict=True))
    assert shown + last == pytest.approx(found.stats.total.passed, rel=0.01)
    assert found.stats.total.passed == 12


@given(st.integers(1, 10**12))
def test_axis_has_round_steps_and_reaches_the_largest_value(most: int) -> None:
    ticks, _, _ = drawn(chart.curve_of(counts([Traffic(passed=most)] * 2), []))
    assert ticks == [0, ticks[2] / 2, ticks[2]]
    assert most * 12 * 0.99999 <= ticks[2] <= most * 12 * 2.00001
    assert f"{ticks[1]:.1e}"[:3] in ("5.0", "1.0", "2.0", "3.0", "4.0")


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_numbers_have_no_exponent(part: int, whole: int) -> None:
    curve = chart.curve_of(counts([Traffic(passed=whole)] * 2), [])
    labels = "".join(label.text or "" for label in drawing("plot", curve)[0])
    shown = f"{labels} {share(min(part, whole), whole)}"
    assert "e" not in shown


async def test_what_happened_is_marked(site: Site) -> None:
    policy = BanPolicy("1/1m", "1h", name="abuse")
    await site.visit()
    await site.limiter.ban("192.0.2.7", "1h")
    await site.limiter.strike("192.0.2.8", policy)
    await site.limiter.override("all", "30/minute", "1h")
    site.clock.advance("2s")
    await site.visit()
    await site.limiter.restore("all")
    site.clock.advance("2s")
    await site.visit()
    service = Service(site.limiter)
    site.limiter.engine.emit(Event("store_failed", "away", {"error": "away"}))
    marks = chart.marks_of(
        (await service.bans()).newest, (await service.counts("5m")).with_starts(await service.events())
    )
    assert Counter(kind for _, kind in marks) == {"ban": 2, "change": 2, "outage": 1, "start": 1}
    site.clock.advance("10s")  # the running step is not drawn
    for view in ("", "?rule=all", "?route=GET /"):
        page = await site.get(view)
        assert {*re.findall('class="mark (\\w+)"', page.body.decode())} == {"ban", "change", "outage", "start"}


def test_ten_events_of_a_kind_are_one_row_and_so_is_what_several_workers_report() -> None:
    said = [("config_reloaded", "a"), ("store_late", "3 of 9 calls"), *[("config_reloaded", "a")] * 11]
    said += [("banned", f"192.0.2.{number}") for number in range(10)]
    events = [LoggedEvent(kind, text, -place, {}, f"worker {place}") for place, (kind, text) in enumerate(said)]
    rows = [(alike[0].kind, alike[0].message, len(alike)) for alike in grouped(events, 10)]
    assert rows == [("config_reloaded", "a", 12), ("store_late", "3 of 9 calls", 1), ("banned", "192.0.2.0", 10)]


async def test_a_flood_that_all_workers_report_hides_no_reload() -> None:
    rows = SharedRows()
    for _ in range(11):
        limiter, statistics = worker_of(rows)
        statistics.event(Event("config_reloaded", "a", {}))
        for place in range(200):
            statistics.event(Event(("banned", "exceeded")[place % 2], str(place), {}, 1))
        await statistics.publish()
    assert "config_reloaded" in {event.kind for event in await Service(limiter).events()}


@given(st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_meter_is_amber_from_80_percent_and_red_when_nothing_is_left(amount: int, used: int) -> None:
    (meter,) = drawing("meter", used, amount)
    expected = "meter full" if used >= amount else "meter near" if used >= 0.8 * amount else "meter"
    assert meter.attrib["class"] == expected


# -- the dashboard as users and scripts see it: what pages show, forms do and the API answers, line by line ------------


TRANSCRIPTS = Path(__file__).with_name("transcripts")


@pytest.mark.parametrize("name", ["access", "api", "views", "forms"])
def test_pages_forms_and_operations(
    name: str, clock: FakeClock, tmp_path: Path, texts: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with asyncio.Runner() as runner:
        visitor = Visitor(clock, tmp_path)
        texts(TRANSCRIPTS / f"{name}.txt", "> ", lambda line: runner.run(visitor.answer(line)))
        for view in VIEWS:
            runner.run(visitor.site.page(view))
    assert SECRET not in caplog.text
