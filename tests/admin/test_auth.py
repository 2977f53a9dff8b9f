"""Tokens and roles; and a client shows five wrong tokens in a minute, all clients together a hundred."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slidegate import ConfigurationError, Limiter, client_ip
from slidegate.admin import AdminRoutes, User
from slidegate.core import StoreUnavailable
from slidegate.dashboard import Dashboard
from slidegate.testing import FakeClock

from ..asgi import call
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

WRONG = "wrong-token-0123456789"


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
        ({"token": TOKEN, "client": "10.0.0.0/8"}, "client: expected client_ip"),
        ({"token": TOKEN, "limiter": "redis://"}, "expected a Limiter, for example"),
    ],
)
@pytest.mark.parametrize("tool", [Dashboard, AdminRoutes])
def test_what_cannot_work_ends_the_construction_and_shows_no_token(
    tool: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{tool.__name__}.*{message}") as raised:
        tool(**{"limiter": Limiter(), **options})
    for token in (TOKEN, "fifteen-letters", "sixteen letters!", "schlüssel"):
        assert token not in str(raised.value)


@pytest.mark.parametrize("tool", [Dashboard, AdminRoutes])
def test_an_option_that_there_is_not_is_named_with_the_one_that_is_meant(tool: Any) -> None:
    with pytest.raises(TypeError, match=rf"{tool.__name__}.*'tokn'; did you mean 'token'"):
        tool(Limiter(), tokn=TOKEN)


# -- roles and tokens ----------------------------------------------------------------------------------------------


async def test_a_change_is_recorded_under_a_name_that_is_not_the_token(site: Site) -> None:
    name = said(await with_token(site.app, "POST", CHANGE, said=NEW_BAN))["policy"]
    assert name.startswith("token#")
    assert TOKEN not in name
    assert said(await with_token(site.app, "GET", "/api/session"))["name"] == name
    assert said(await with_token(site.app, "GET", "/api/session", READ_TOKEN))["name"] != name


@pytest.mark.parametrize(
    "field", ["Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xff"]
)
async def test_a_wrong_token_opens_nothing(field: str, site: Site) -> None:
    headers = [(b"host", HOST.encode()), (b"authorization", field.encode("latin-1"))]
    assert (await call(site.app, LOOK, headers=headers)).status == 401


async def test_two_tokens_at_once_open_nothing(site: Site) -> None:
    headers = [(b"host", HOST.encode()), *[(b"authorization", f"Bearer {TOKEN}".encode())] * 2]
    assert (await call(site.app, LOOK, headers=headers)).status == 401


async def test_a_wrong_token_beside_a_good_session_opens_nothing(site: Site) -> None:
    browser = await logged_in(site)
    assert (await browser.send("GET", LOOK, authorization="Bearer wrong-wrong-wrong")).status == 401
    assert (await browser.send("GET", LOOK)).status == 200


# -- auth=... ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["full", "read", User("full", "ann\n" + "x" * 100), None])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_auth_function_says_who_comes(answer: Any, is_async: bool, clock: FakeClock) -> None:
    async def later(request: Any) -> Any:
        return answer

    site = Site(clock, auth=later if is_async else lambda request: answer)
    got = await Browser(site.app).send("GET", "/api/session")
    if answer is None:
        assert got.status == 401
    else:
        assert said(got)["role"] == (answer if isinstance(answer, str) else answer.role)
        assert len(said(got)["name"]) <= 64
        assert "\n" not in said(got)["name"]


@pytest.mark.parametrize("answer", [True, "admin", 1, User("admin", "ann"), User("full", 3), ("full", "ann")])  # type: ignore[arg-type]
async def test_an_auth_function_that_says_anything_else_lets_nobody_in(answer: Any, clock: FakeClock) -> None:
    assert (await Browser(Site(clock, auth=lambda request: answer).app).send("GET", LOOK)).status == 500


async def test_an_auth_function_that_fails_lets_nobody_in(clock: FakeClock) -> None:
    site = Site(clock, auth=lambda request: 1 / 0)
    assert (await Browser(site.app).send("GET", LOOK)).status == 500
    assert (await Browser(site.app).send("GET", LOOK, authorization="Bearer x")).status == 500


# -- wrong tokens --------------------------------------------------------------------------------------------------


async def test_the_sixth_wrong_login_in_a_minute_has_to_wait_and_the_wait_is_exact(site: Site) -> None:
    browser = Browser(site.app)
    for _ in range(5):
        assert (await browser.log_in(WRONG)).status == 401
        site.clock.advance("5s")
    refused = await browser.log_in(WRONG)
    assert (refused.status, refused.headers["retry-after"]) == (429, "35")
    # The right one is not looked at either, so the guess that was right says nothing.
    assert (await browser.log_in()).status == 429
    site.clock.advance(us=35_000_000 - 1)
    assert (await browser.log_in()).status == 429
    site.clock.advance(us=1)
    assert (await browser.log_in()).status == 200


async def test_the_right_token_spends_nothing(site: Site) -> None:
    browser = Browser(site.app)
    for _ in range(20):
        assert (await browser.log_in()).status == 200
        assert (await with_token(site.app, "GET", LOOK)).status == 200
    for _ in range(5):
        assert (await browser.log_in(WRONG)).status == 401


async def test_wrong_tokens_of_scripts_and_logins_count_together(site: Site) -> None:
    browser = Browser(site.app)
    for number in range(5):
        if number % 2:
            assert (await browser.log_in(WRONG)).status == 401
        else:
            assert (await with_token(site.app, "GET", LOOK, WRONG)).status == 401
    assert (await browser.log_in()).status == 429
    assert (await with_token(site.app, "GET", LOOK)).status == 429


async def test_a_script_that_has_shown_its_token_is_locked_out_by_its_own_address_alone(site: Site) -> None:
    assert (await with_token(site.app, "GET", LOOK)).status == 200
    refused = 0
    for number in range(200):  # from everywhere else
        browser = Browser(site.app, peer=f"198.51.100.{number}")
        refused += (await browser.log_in(WRONG)).status == 429
    assert refused == 100
    assert (await with_token(site.app, "GET", LOOK)).status == 200
    assert (await Browser(site.app, peer="192.0.2.1").log_in()).status == 429
    site.clock.advance("61s")
    browser = Browser(site.app)  # from its own address
    assert [(await browser.log_in(WRONG)).status for _ in range(6)] == [401] * 5 + [429]
    assert (await with_token(site.app, "GET", LOOK)).status == 429
    site.clock.advance("61s")
    assert (await with_token(site.app, "GET", LOOK)).status == 200


async def test_a_session_goes_on_while_its_address_is_locked_out(site: Site) -> None:
    browser = Browser(site.app)
    await browser.log_in()
    for _ in range(6):
        await browser.log_in(WRONG)
    assert (await browser.change()).status == 201


async def test_addresses_of_one_network_are_one_client_and_others_are_not(site: Site) -> None:
    for number in range(5):
        assert (await Browser(site.app, peer=f"2001:db8::{number + 1}").log_in(WRONG)).status == 401
    assert (await Browser(site.app, peer="2001:db8::ffff").log_in(WRONG)).status == 429
    assert (await Browser(site.app, peer="2001:db8:1::1").log_in(WRONG)).status == 401


async def test_behind_proxies_the_client_is_the_address_that_they_name(clock: FakeClock) -> None:
    site = Site(clock, client=client_ip(trusted=["10.0.0.0/8"]))

    async def status(forwarded: str, peer: str = "10.0.0.1") -> int:
        headers = {"host": HOST, "authorization": f"Bearer {WRONG}", "x-forwarded-for": forwarded}
        return (await call(site.app, LOOK, headers=headers, client=(peer, 1))).status

    assert [await status("203.0.113.1") for _ in range(6)] == [401] * 5 + [429]
    # What a client writes in front of its address is no other client.
    assert await status("6.6.6.6, 203.0.113.1") == 429
    assert await status("203.0.113.2") == 401
    assert [await status(f"203.0.113.{n}", peer="192.0.2.1") for n in range(3, 9)] == [401] * 5 + [429]


async def test_guesses_at_the_same_time_are_no_way_past_the_bound(site: Site) -> None:
    answers = await asyncio.gather(*(with_token(site.app, "GET", LOOK, f"{WRONG}{n}") for n in range(50)))
    assert sorted(answer.status for answer in answers) == [401] * 5 + [429] * 45


async def test_an_authorization_that_a_function_does_not_know_counts_as_a_wrong_token(clock: FakeClock) -> None:
    site = Site(clock, auth=lambda request: "full" if request.headers.get("authorization") == "Basic right" else None)
    statuses = []
    for _ in range(6):
        headers = {"host": HOST, "authorization": "Basic wrong"}
        statuses.append((await call(site.app, LOOK, headers=headers)).status)
    assert statuses == [401] * 5 + [429]


async def test_a_token_that_a_function_no_longer_knows_is_wrong(clock: FakeClock) -> None:
    known = ["full"]
    site = Site(clock, auth=lambda request: known[0] or None)  # type: ignore[arg-type,return-value]
    assert (await with_token(site.app, "GET", LOOK)).status == 200
    known[0] = ""
    statuses = [(await with_token(site.app, "GET", LOOK)).status for _ in range(7)]
    assert statuses.count(429) >= 1
    known[0] = "full"
    site.clock.advance("61s")
    assert (await with_token(site.app, "GET", LOOK)).status == 200


async def test_a_function_that_fails_spends_nothing(clock: FakeClock) -> None:
    broken = [True]
    site = Site(clock, auth=lambda request: 1 / 0 if broken[0] else "full")  # type: ignore[arg-type,return-value]
    for _ in range(10):
        assert (await with_token(site.app, "GET", LOOK)).status == 500
    broken[0] = False
    assert (await with_token(site.app, "GET", LOOK)).status == 200


async def test_wrong_tokens_are_logged_by_address_and_never_as_they_are(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        await with_token(site.app, "GET", LOOK, WRONG)
    assert WRONG not in caplog.text
    assert caplog.text.count("203.0.113.9") == 5


# -- stores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["allow", "deny", "local"])
async def test_while_the_store_is_away_the_bound_holds_in_each_worker(on_error: Any, clock: FakeClock) -> None:
    store: Any = SickStore(clock)
    limiter = Limiter(store, on_error=on_error, deadline="30s")
    door = Dashboard(limiter, token=TOKEN)
    store.error = StoreUnavailable("away")
    assert (await with_token(door, "GET", LOOK)).status == 200
    statuses = [(await with_token(door, "GET", LOOK, WRONG)).status for _ in range(8)]
    assert statuses == [401] * 5 + [429] * 3
    await limiter.close()
