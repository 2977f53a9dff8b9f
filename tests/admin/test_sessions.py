"""A session belongs to one browser, and every worker knows when it is over, logged out, or its token has changed."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from itsdangerous import URLSafeTimedSerializer

from slidegate import ConfigurationError, Limiter, MemoryStore
from slidegate.admin import User
from slidegate.core import StoreUnavailable
from slidegate.dashboard import Dashboard
from slidegate.stores.lmdb.store import LmdbStore
from slidegate.testing import FakeClock

from ..asgi import call
from ..remote_stores import SickStore
from .dashboard_client import HOST, LOOK, READ_TOKEN, TOKEN, Browser, Site, logged_in, said

HOUR_S = 3_600


def worker(limiter: Limiter, **options: Any) -> Dashboard:
    """Return the dashboard of another worker."""
    return Dashboard(limiter, **{"token": TOKEN, "read_token": READ_TOKEN, **options})


async def moved(browser: Browser, to: Dashboard) -> int:
    """Return the status that a change of the same browser gets at another worker."""
    browser.app = to
    return (await browser.change()).status


# -- the cookie ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "root", "name", "path"),
    [
        ("http", "/slidegate", "slidegate_session", "/slidegate"),
        ("https", "/slidegate", "__Secure-slidegate_session", "/slidegate"),
        ("https", "", "__Host-slidegate_session", "/"),
        ("http", "/x;Domain=evil.example", "slidegate_session", "/"),
        ("http", "/ä", "slidegate_session", "/"),
    ],
)
async def test_the_cookie_is_for_this_place_alone_and_for_no_script(
    scheme: str, root: str, name: str, path: str, clock: FakeClock
) -> None:
    browser = await logged_in(Site(clock), scheme=scheme, root=root)
    morsel = browser.last_cookie
    assert (morsel.key, morsel["path"]) == (name, path)
    assert morsel["httponly"] is True
    assert morsel["samesite"] == "strict"
    assert morsel["secure"] == (True if scheme == "https" else "")
    assert morsel["domain"] == ""
    assert int(morsel["max-age"]) == 12 * HOUR_S
    assert TOKEN not in morsel.value


async def test_behind_a_proxy_that_ends_tls_the_cookie_is_secure(clock: FakeClock) -> None:
    browser = Browser(Site(clock).app, root="/ops")
    await browser.send("POST", "/api/session", {"token": TOKEN}, origin=f"https://{HOST}")
    assert browser.last_cookie.key == "__Secure-slidegate_session"
    assert browser.last_cookie["secure"] is True
    assert (await browser.send("GET", LOOK)).status == 200


async def test_over_https_a_cookie_that_any_site_of_the_domain_can_set_is_none(clock: FakeClock) -> None:
    browser = await logged_in(Site(clock), scheme="https")
    ((name, value),) = browser.cookies.items()
    browser.cookies = {"slidegate_session": value}
    assert (await browser.send("GET", LOOK)).status == 401
    browser.cookies = {name: value}
    assert (await browser.send("GET", LOOK)).status == 200


async def test_a_foreign_cookie_of_the_same_name_hides_no_session(clock: FakeClock) -> None:
    browser = await logged_in(Site(clock))
    ((name, value),) = browser.cookies.items()
    for field in (f"{name}=x; {name}={value}", f"{name}={value}; {name}=x", f"a; =; {name}=;{name}={value}"):
        assert (await browser.send("GET", LOOK, cookie=field)).status == 200
    many = "; ".join([f"{name}=x"] * 9)
    assert (await browser.send("GET", LOOK, cookie=f"{many}; {name}={value}")).status == 401


# -- forged, old and revoked ---------------------------------------------------------------------------------------


NO_SESSIONS = {
    "empty": lambda good: "",
    "no signature": lambda good: good.rpartition(".")[0],
    "another signature": lambda good: good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB"),
    "another body": lambda good: "x" + good,
    "signed by somebody": lambda good: URLSafeTimedSerializer(b"k" * 32, b"slidegate: session").dumps(["a" * 22, 1]),
    "too long": lambda good: "a" * 10_000,
    "no ASCII": lambda good: "ä" * 20,
}


@pytest.mark.parametrize("which", NO_SESSIONS)
async def test_no_other_text_is_a_session(which: str, clock: FakeClock) -> None:
    browser = await logged_in(Site(clock))
    (good,) = browser.cookies.values()
    for text, status in ((NO_SESSIONS[which](good), 401), (good, 200)):
        headers = [(b"host", HOST.encode()), (b"cookie", f"slidegate_session={text}".encode())]
        assert (await call(browser.app, LOOK, headers=headers)).status == status


async def test_a_session_from_tomorrow_is_none(clock: FakeClock) -> None:
    browser = await logged_in(Site(clock))
    clock.advance(timedelta(seconds=-30))
    assert (await browser.send("GET", LOOK)).status == 200, "the clocks of two hosts may differ a little"
    clock.advance(timedelta(minutes=-1))
    assert (await browser.send("GET", LOOK)).status == 401


async def test_a_session_ends_when_its_time_is_over(clock: FakeClock) -> None:
    site = Site(clock, session="1h")
    browser = await logged_in(site)
    site.clock.advance(us=HOUR_S * 1_000_000 - 1)
    assert (await browser.change()).status == 201
    site.clock.advance(us=1)
    assert (await browser.change()).status == 401
    assert (await browser.send("GET", "/api/session")).status == 401


async def test_polls_do_not_prolong_a_session(clock: FakeClock) -> None:
    browser = await logged_in(Site(clock, session="1h"))
    for _ in range(59):
        clock.advance("1m")
        for path in ("/api/now", LOOK, "/api/session"):
            answer = await browser.send("GET", path)
            assert answer.status == 200
            assert "set-cookie" not in answer.headers
    clock.advance("1m")
    assert (await browser.send("GET", "/api/now")).status == 401


async def test_who_is_logged_in_is_told_to_itself_alone(clock: FakeClock) -> None:
    site = Site(clock)
    browser = await logged_in(site, READ_TOKEN)
    answer = said(await browser.send("GET", "/api/session"))
    assert (answer["role"], answer["ends_at"]) == ("read", clock.now_us / 1_000_000 + 12 * HOUR_S)
    assert said(await browser.log_in(READ_TOKEN)) == answer
    assert (await Browser(site.app).send("GET", "/api/session")).status == 401


async def test_a_new_login_ends_the_session_before_it(site: Site) -> None:
    browser = await logged_in(site)
    before = dict(browser.cookies)
    await browser.log_in()
    assert browser.cookies != before
    assert (await browser.change()).status == 201
    browser.cookies = before
    assert (await browser.send("GET", LOOK)).status == 401


async def test_a_logged_out_session_is_dead_and_the_one_of_another_operator_is_not(site: Site) -> None:
    one, other = await logged_in(site), await logged_in(site)
    kept = dict(one.cookies)
    assert (await one.send("DELETE", "/api/session")).status == 204
    assert one.cookies == {}
    one.cookies = kept
    assert (await one.send("GET", LOOK)).status == 401
    site.clock.advance("11h")
    assert (await one.send("GET", LOOK)).status == 401
    assert (await other.change()).status == 201


async def test_a_reader_logs_out_too_and_a_stranger_does_not(site: Site) -> None:
    browser = await logged_in(site, READ_TOKEN)
    assert (await browser.send("DELETE", "/api/session")).status == 204
    assert (await browser.send("DELETE", "/api/session")).status == 401


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_session_is_not_changed(method: str, clock: FakeClock) -> None:
    assert (await (await logged_in(Site(clock))).send(method, "/api/session", {})).status == 405


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{}", 422),
        (b'{"token": 5}', 422),
        (b'{"token": "x", "more": 1}', 422),
        (b'{"token": "%s"}' % (b"x" * 513), 422),
        (b'{"token": "x"', 400),
        (b'{"token": "%s"}' % (b"x" * 5_000), 413),
        (b'{"token": "wrong"}', 401),
    ],
)
async def test_what_is_no_login_opens_no_session(body: bytes, status: int, site: Site) -> None:
    answer = await Browser(site.app).send("POST", "/api/session", body)
    assert answer.status == status
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("length", ["10s", "31d"])
def test_a_session_lasts_1_minute_to_30_days(length: str) -> None:
    with pytest.raises(ConfigurationError, match="session: expected 1m to 30d"):
        Dashboard(Limiter(), token=TOKEN, session=length)


async def test_where_a_function_says_who_comes_there_is_no_login_and_no_cookie(clock: FakeClock) -> None:
    browser = Browser(Site(clock, auth=lambda request: User("full", "ann")).app)
    assert said(await browser.send("GET", "/api/session")) == {"role": "full", "name": "ann", "ends_at": None}
    assert (await browser.log_in()).status == 404
    assert (await browser.change()).status == 201
    assert browser.cookies == {}


def test_without_its_package_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("slidegate.dashboard", "slidegate.admin.dashboard", "slidegate.admin.sessions"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "itsdangerous", None)
    with pytest.raises(ImportError, match=r'pip install "slidegate\[dashboard\]"'):
        importlib.import_module("slidegate.dashboard")


# -- several workers -----------------------------------------------------------------------------------------------


async def test_another_worker_knows_the_session_and_another_token_ends_it(clock: FakeClock) -> None:
    site = Site(clock)
    other = Limiter(MemoryStore(clock=site.clock))
    browser = await logged_in(site)
    assert await moved(browser, worker(other)) == 201
    assert await moved(browser, worker(other, token=[READ_TOKEN + "x", TOKEN], read_token=None)) == 201
    assert await moved(browser, worker(other, token="another-token-0123456789")) == 401
    # The role is that of the token, now.
    assert await moved(browser, worker(other, token=None, read_token=TOKEN)) == 403


async def test_a_worker_with_the_same_store_knows_that_a_session_was_revoked(tmp_path: Path, clock: FakeClock) -> None:
    site = Site(clock, store=LmdbStore(tmp_path / "store"))
    other = Limiter(LmdbStore(tmp_path / "store"), deadline="30s")
    browser = await logged_in(site)
    kept = dict(browser.cookies)
    assert await moved(browser, worker(other)) == 201
    assert (await browser.send("DELETE", "/api/session")).status == 204
    for limiter in (site.limiter, other):
        browser.cookies = dict(kept)
        assert await moved(browser, worker(limiter)) == 401
    # Its length may have been changed meanwhile.
    browser.cookies = dict(kept)
    assert await moved(browser, worker(site.limiter, session="30d")) == 401
    await site.limiter.close()
    await other.close()


@pytest.mark.parametrize("on_error", ["allow", "deny", "local"])
async def test_while_the_store_is_away_a_session_is_good_for_looking_and_logging_out_fails(
    on_error: Any, clock: FakeClock
) -> None:
    site = Site(clock)
    store: Any = SickStore(clock)
    limiter = Limiter(store, on_error=on_error, deadline="30s")
    browser = await logged_in(site)
    assert await moved(browser, worker(limiter)) == 201
    store.error = StoreUnavailable("away")
    assert await moved(browser, worker(limiter)) == 403
    assert (await browser.send("GET", LOOK)).status == 200
    assert (await browser.send("DELETE", "/api/session")).status == 503
    assert browser.cookies
    await limiter.close()


def test_a_visit_works_under_trio_too(clock: FakeClock) -> None:
    async def visit() -> None:
        site = Site(clock)
        browser = Browser(site.app)
        assert (await browser.log_in()).status == 200
        assert (await browser.change()).status == 201
        assert (await browser.log_in("wrong-token-0123456789")).status == 401
        assert (await browser.send("DELETE", "/api/session")).status == 204
        assert await site.changed()

    anyio.run(visit, backend="trio")
