"""A session belongs to one browser, and every worker knows when it is over, logged out, or its token has changed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from itsdangerous import URLSafeSerializer

from slidegate import Limiter, MemoryStore
from slidegate.admin.access import Access
from slidegate.admin.door import Door
from slidegate.stores.lmdb.store import LmdbStore

from ..asgi import call
from .away_store import AwayStore
from .visits import HOST, READ_TOKEN, TOKEN, Browser, House, said

HOUR_S = 3_600


def door(limiter: Limiter, house: House, **options: Any) -> Door:
    """Return the door of another worker."""
    options = {"token": TOKEN, "read_token": READ_TOKEN, **options}
    return Door(house.tool.app(), Access(limiter, clock=house.clock, **options), prefix="/api")


async def session_at(house: House, token: str = TOKEN, **options: Any) -> Browser:
    browser = Browser(house.door, **options)
    assert (await browser.log_in(token)).status == 200
    return browser


async def moved(browser: Browser, to: Door) -> int:
    """Return the status that the same browser gets at another door."""
    browser.app = to
    return (await browser.send("POST", "/api/items", {})).status


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
    scheme: str, root: str, name: str, path: str
) -> None:
    browser = await session_at(House(), scheme=scheme, root=root)
    morsel = browser.last_cookie
    assert (morsel.key, morsel["path"]) == (name, path)
    assert morsel["httponly"] is True
    assert morsel["samesite"] == "Strict"
    assert morsel["secure"] == (True if scheme == "https" else "")
    assert morsel["domain"] == ""
    assert int(morsel["max-age"]) == 12 * HOUR_S
    assert TOKEN not in morsel.value


async def test_behind_a_proxy_that_ends_tls_the_cookie_is_secure() -> None:
    browser = Browser(House().door, root="/ops")
    await browser.send("POST", "/api/session", {"token": TOKEN}, origin=f"https://{HOST}")
    assert browser.last_cookie.key == "__Secure-slidegate_session"
    assert browser.last_cookie["secure"] is True
    assert (await browser.send("GET", "/api/items")).status == 200


async def test_over_https_a_cookie_that_any_site_of_the_domain_can_set_is_none() -> None:
    browser = await session_at(House(), scheme="https")
    ((name, value),) = browser.cookies.items()
    browser.cookies = {"slidegate_session": value}
    assert (await browser.send("GET", "/api/items")).status == 401
    browser.cookies = {name: value}
    assert (await browser.send("GET", "/api/items")).status == 200


async def test_a_foreign_cookie_of_the_same_name_hides_no_session() -> None:
    browser = await session_at(House())
    ((name, value),) = browser.cookies.items()
    for field in (f"{name}=x; {name}={value}", f"{name}={value}; {name}=x", f"a; =; {name}=;{name}={value}"):
        assert (await browser.send("GET", "/api/items", cookie=field)).status == 200
    many = "; ".join([f"{name}=x"] * 9)
    assert (await browser.send("GET", "/api/items", cookie=f"{many}; {name}={value}")).status == 401


# -- forged, old and revoked ---------------------------------------------------------------------------------------


NO_SESSIONS = {
    "empty": lambda good: "",
    "no signature": lambda good: good.rpartition(".")[0],
    "another signature": lambda good: good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB"),
    "another body": lambda good: "x" + good,
    "signed by somebody": lambda good: URLSafeSerializer(b"k" * 32, b"slidegate: session").dumps(["a" * 22, 1]),
    "too long": lambda good: "a" * 10_000,
    "no ASCII": lambda good: "ä" * 20,
}


@pytest.mark.parametrize("which", NO_SESSIONS)
async def test_no_other_text_is_a_session(which: str) -> None:
    browser = await session_at(House())
    (good,) = browser.cookies.values()
    for text, status in ((NO_SESSIONS[which](good), 401), (good, 200)):
        headers = [(b"host", HOST.encode()), (b"cookie", f"slidegate_session={text}".encode())]
        assert (await call(browser.app, "/api/items", headers=headers)).status == status


async def test_a_session_from_tomorrow_is_none() -> None:
    house = House()
    house.clock.advance("1d")
    browser = await session_at(house)
    assert await moved(browser, House().door) == 401


async def test_a_session_ends_when_its_time_is_over() -> None:
    house = House(session="1h")
    browser = await session_at(house)
    house.clock.advance(us=HOUR_S * 1_000_000 - 1)
    assert (await browser.send("POST", "/api/items", {})).status == 200
    house.clock.advance(us=1)
    assert (await browser.send("POST", "/api/items", {})).status == 401
    assert (await browser.send("GET", "/api/session")).status == 401


async def test_who_is_logged_in_is_told_to_itself_alone() -> None:
    house = House()
    browser = await session_at(house, READ_TOKEN)
    answer = said(await browser.send("GET", "/api/session"))
    assert (answer["role"], answer["csrf"]) == ("read", browser.csrf)
    assert answer["ends_at"] == house.clock.now_us / 1_000_000 + 12 * HOUR_S
    assert (await Browser(house.door).send("GET", "/api/session")).status == 401


async def test_a_new_login_ends_the_session_before_it() -> None:
    house = House()
    browser = await session_at(house)
    before = dict(browser.cookies), browser.csrf
    await browser.log_in()
    assert browser.cookies != before[0]
    assert (await browser.send("POST", "/api/items", {})).status == 200
    browser.cookies, browser.csrf = before
    assert (await browser.send("GET", "/api/items")).status == 401


async def test_a_logged_out_session_is_dead_and_the_one_of_another_operator_is_not() -> None:
    house = House()
    one, other = await session_at(house), await session_at(house)
    kept = dict(one.cookies)
    assert said(await one.send("DELETE", "/api/session", x_csrf_token="0" * 64))["code"] == "csrf"
    assert (await one.send("DELETE", "/api/session", origin=None)).status == 403
    assert (await one.send("GET", "/api/items")).status == 200
    assert (await one.send("DELETE", "/api/session")).status == 204
    assert one.cookies == {}
    one.cookies = kept
    assert (await one.send("GET", "/api/items")).status == 401
    house.clock.advance("11h")
    assert (await one.send("GET", "/api/items")).status == 401
    assert (await other.send("POST", "/api/items", {})).status == 200


async def test_a_reader_logs_out_too_and_a_stranger_does_not() -> None:
    house = House()
    browser = await session_at(house, READ_TOKEN)
    assert (await browser.send("DELETE", "/api/session")).status == 204
    assert (await browser.send("DELETE", "/api/session")).status == 401


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_session_is_not_changed(method: str) -> None:
    assert (await (await session_at(House())).send(method, "/api/session", {})).status == 405


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
async def test_what_is_no_login_opens_no_session(body: bytes, status: int) -> None:
    house = House()
    answer = await Browser(house.door).send("POST", "/api/session", body)
    assert answer.status == status
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"content_type": "text/plain"},
        {"content_type": None},
        {"host": "evil.example"},
    ],
)
async def test_no_page_elsewhere_logs_a_browser_in(headers: dict[str, Any]) -> None:
    answer = await Browser(House().door).send("POST", "/api/session", {"token": TOKEN}, **headers)
    assert answer.status in (403, 415, 421)
    assert "set-cookie" not in answer.headers


def test_without_its_package_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "slidegate.admin.sessions")
    monkeypatch.setitem(sys.modules, "itsdangerous", None)
    with pytest.raises(ImportError, match=r'pip install "slidegate\[dashboard\]"'):
        importlib.import_module("slidegate.admin.sessions")


# -- several workers -----------------------------------------------------------------------------------------------


async def test_another_worker_knows_the_session_and_another_token_ends_it() -> None:
    house = House()
    other = Limiter(MemoryStore(clock=house.clock))
    browser = await session_at(house)
    assert await moved(browser, door(other, house)) == 200
    assert await moved(browser, door(other, house, token=[READ_TOKEN + "x", TOKEN], read_token=None)) == 200
    assert await moved(browser, door(other, house, token="another-token-0123456789")) == 401
    # The role is that of the token, now.
    assert await moved(browser, door(other, house, token=None, read_token=TOKEN)) == 403


async def test_a_worker_with_the_same_store_knows_that_a_session_was_revoked(tmp_path: Path) -> None:
    house = House(store=LmdbStore(tmp_path / "store"))
    other = Limiter(LmdbStore(tmp_path / "store"), deadline="30s")
    browser = await session_at(house)
    kept = dict(browser.cookies)
    assert await moved(browser, door(other, house)) == 200
    assert (await browser.send("DELETE", "/api/session")).status == 204
    for limiter in (house.limiter, other):
        browser.cookies = dict(kept)
        assert await moved(browser, door(limiter, house)) == 401
    # Its length may have been changed meanwhile.
    browser.cookies = dict(kept)
    assert await moved(browser, door(house.limiter, house, session="30d")) == 401
    await house.limiter.close()
    await other.close()


@pytest.mark.parametrize("on_error", ["allow", "deny", "local"])
async def test_while_the_store_is_away_a_session_is_good_for_looking_and_logging_out_fails(
    on_error: Any, tmp_path: Path
) -> None:
    house = House()
    store = AwayStore(tmp_path / "store")
    limiter = Limiter(store, on_error=on_error, deadline="30s")
    browser = await session_at(house)
    assert await moved(browser, door(limiter, house)) == 200
    store.away = True
    assert await moved(browser, door(limiter, house)) == 403
    assert (await browser.send("GET", "/api/items")).status == 200
    assert (await browser.send("DELETE", "/api/session")).status == 503
    assert browser.cookies
    await limiter.close()


def test_a_visit_works_under_trio_too() -> None:
    async def visit() -> None:
        house = House()
        browser = Browser(house.door)
        assert (await browser.log_in()).status == 200
        assert (await browser.send("POST", "/api/items", {"n": 1})).status == 200
        assert (await browser.log_in("wrong-token-0123456789")).status == 401
        assert (await browser.send("DELETE", "/api/session")).status == 204
        assert house.tool.changes == [{"n": 1}]

    anyio.run(visit, backend="trio")
