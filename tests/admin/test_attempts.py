"""A client shows five wrong tokens in a minute, all clients together a hundred; the right one opens after the wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slidegate import Limiter, client_ip
from slidegate.admin.access import Access
from slidegate.admin.door import Door
from slidegate.stores.lmdb.store import LmdbStore

from ..asgi import call
from .away_store import AwayStore
from .visits import HOST, TOKEN, Browser, House, with_token

WRONG = "wrong-token-0123456789"


async def test_the_sixth_wrong_login_in_a_minute_has_to_wait_and_the_wait_is_exact() -> None:
    house = House()
    browser = Browser(house.door)
    for _ in range(5):
        assert (await browser.log_in(WRONG)).status == 401
        house.clock.advance("5s")
    refused = await browser.log_in(WRONG)
    assert (refused.status, refused.headers["retry-after"]) == (429, "35")
    # The right one is not looked at either, so the guess that was right says nothing.
    assert (await browser.log_in()).status == 429
    house.clock.advance(us=35_000_000 - 1)
    assert (await browser.log_in()).status == 429
    house.clock.advance(us=1)
    assert (await browser.log_in()).status == 200


async def test_the_right_token_spends_nothing() -> None:
    house = House()
    browser = Browser(house.door)
    for _ in range(20):
        assert (await browser.log_in()).status == 200
        assert (await with_token(house.door, "GET", "/api/items")).status == 200
    for _ in range(5):
        assert (await browser.log_in(WRONG)).status == 401


async def test_wrong_tokens_of_scripts_and_logins_count_together() -> None:
    house = House()
    browser = Browser(house.door)
    for number in range(5):
        if number % 2:
            assert (await browser.log_in(WRONG)).status == 401
        else:
            assert (await with_token(house.door, "GET", "/api/items", WRONG)).status == 401
    assert (await browser.log_in()).status == 429
    assert (await with_token(house.door, "GET", "/api/items")).status == 429


async def test_a_script_that_has_shown_its_token_is_locked_out_by_its_own_address_alone() -> None:
    house = House()
    assert (await with_token(house.door, "GET", "/api/items")).status == 200
    refused = 0
    for number in range(200):  # from everywhere else
        browser = Browser(house.door, peer=f"198.51.100.{number}")
        refused += (await browser.log_in(WRONG)).status == 429
    assert refused == 100
    assert (await with_token(house.door, "GET", "/api/items")).status == 200
    assert (await Browser(house.door, peer="192.0.2.1").log_in()).status == 429
    house.clock.advance("61s")
    browser = Browser(house.door)  # from its own address
    assert [(await browser.log_in(WRONG)).status for _ in range(6)] == [401] * 5 + [429]
    assert (await with_token(house.door, "GET", "/api/items")).status == 429
    house.clock.advance("61s")
    assert (await with_token(house.door, "GET", "/api/items")).status == 200


async def test_a_session_goes_on_while_its_address_is_locked_out() -> None:
    house = House()
    browser = Browser(house.door)
    await browser.log_in()
    for _ in range(6):
        await browser.log_in(WRONG)
    assert (await browser.send("POST", "/api/items", {})).status == 200


async def test_addresses_of_one_network_are_one_client_and_others_are_not() -> None:
    house = House()
    for number in range(5):
        assert (await Browser(house.door, peer=f"2001:db8::{number + 1}").log_in(WRONG)).status == 401
    assert (await Browser(house.door, peer="2001:db8::ffff").log_in(WRONG)).status == 429
    assert (await Browser(house.door, peer="2001:db8:1::1").log_in(WRONG)).status == 401


async def test_behind_proxies_the_client_is_the_address_that_they_name() -> None:
    house = House(client=client_ip(trusted=["10.0.0.0/8"]))

    async def status(forwarded: str, peer: str = "10.0.0.1") -> int:
        headers = {"host": HOST, "authorization": f"Bearer {WRONG}", "x-forwarded-for": forwarded}
        return (await call(house.door, "/api/items", headers=headers, client=(peer, 1))).status

    assert [await status("203.0.113.1") for _ in range(6)] == [401] * 5 + [429]
    # What a client writes in front of its address is no other client.
    assert await status("6.6.6.6, 203.0.113.1") == 429
    assert await status("203.0.113.2") == 401
    assert [await status(f"203.0.113.{n}", peer="192.0.2.1") for n in range(3, 9)] == [401] * 5 + [429]


async def test_guesses_at_the_same_time_are_no_way_past_the_bound() -> None:
    house = House()
    answers = await asyncio.gather(*(with_token(house.door, "GET", "/api/items", f"{WRONG}{n}") for n in range(50)))
    assert sorted(answer.status for answer in answers) == [401] * 5 + [429] * 45


async def test_an_authorization_that_a_function_does_not_know_counts_as_a_wrong_token() -> None:
    house = House(auth=lambda request: "full" if request.headers.get("authorization") == "Basic right" else None)
    statuses = []
    for _ in range(6):
        headers = {"host": HOST, "authorization": "Basic wrong"}
        statuses.append((await call(house.door, "/api/items", headers=headers)).status)
    assert statuses == [401] * 5 + [429]


async def test_a_token_that_a_function_no_longer_knows_is_wrong() -> None:
    known = ["full"]
    house = House(auth=lambda request: known[0] or None)  # type: ignore[arg-type,return-value]
    assert (await with_token(house.door, "GET", "/api/items")).status == 200
    known[0] = ""
    statuses = [(await with_token(house.door, "GET", "/api/items")).status for _ in range(7)]
    assert statuses.count(429) >= 1
    known[0] = "full"
    house.clock.advance("61s")
    assert (await with_token(house.door, "GET", "/api/items")).status == 200


async def test_a_function_that_fails_spends_nothing() -> None:
    broken = [True]
    house = House(auth=lambda request: 1 / 0 if broken[0] else "full")  # type: ignore[arg-type,return-value]
    for _ in range(10):
        assert (await with_token(house.door, "GET", "/api/items")).status == 500
    broken[0] = False
    assert (await with_token(house.door, "GET", "/api/items")).status == 200


async def test_wrong_tokens_are_logged_by_address_and_never_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    for _ in range(10):
        await with_token(house.door, "GET", "/api/items", WRONG)
    assert WRONG not in caplog.text
    assert caplog.text.count("203.0.113.9") == 5


# -- stores --------------------------------------------------------------------------------------------------------


async def test_the_bound_holds_over_workers(tmp_path: Path) -> None:
    workers = [Limiter(LmdbStore(tmp_path / "store"), deadline="30s") for _ in range(3)]
    doors = [Door(House().tool.app(), Access(limiter, token=TOKEN), prefix="/api") for limiter in workers]
    statuses = [(await with_token(doors[n % 3], "GET", "/api/items", WRONG)).status for n in range(9)]
    assert statuses == [401] * 5 + [429] * 4
    for limiter in workers:
        await limiter.close()


@pytest.mark.parametrize("on_error", ["allow", "deny", "local"])
async def test_while_the_store_is_away_the_bound_holds_in_each_worker(on_error: str, tmp_path: Path) -> None:
    store = AwayStore(tmp_path / "store")
    limiter = Limiter(store, on_error=on_error, deadline="30s")  # type: ignore[arg-type]
    door = Door(House().tool.app(), Access(limiter, token=TOKEN), prefix="/api")
    store.away = True
    assert (await with_token(door, "GET", "/api/items")).status == 200
    statuses = [(await with_token(door, "GET", "/api/items", WRONG)).status for _ in range(8)]
    assert statuses == [401] * 5 + [429] * 3
    await limiter.close()
