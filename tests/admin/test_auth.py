"""Tokens, passwords, functions and roles; wrong tokens are counted by address, and never delay a valid one."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from slidegate import ConfigurationError, Limiter
from slidegate.admin import AdminRoutes, User
from slidegate.core import StoreUnavailable
from slidegate.dashboard import Dashboard
from slidegate.testing import FakeClock

from ..asgi import call
from ..redis_servers import RedisServer, needs_redis
from ..remote_stores import SickStore
from .dashboard_client import CHANGE, HOST, LOOK, NEW_BAN, READ_TOKEN, TOKEN, Browser, Site, basic, said, with_token

WRONG = "wrong-token-0123456789"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"a token or auth= is required.*secrets\.token_urlsafe\(32\)"),
        ({"token": ""}, "16 to 512 characters"),
        ({"token": "fifteen-letters"}, "16 to 512 characters.*not 15"),
        ({"token": "schlüssel-schlüssel"}, "printable ASCII"),
        ({"token": b"bytes-are-no-text-here"}, "token: expected text"),
        ({"token": [TOKEN, None]}, "printable ASCII"),
        ({"token": TOKEN, "read_token": TOKEN}, "given twice"),
        ({"token": [f"token-number-{number:04}" for number in range(17)]}, "at most 16"),
        ({"token": TOKEN, "auth": lambda request: None}, "expected tokens or auth=, not both"),
        ({"auth": "full"}, "auth: expected a function"),
        ({"token": TOKEN, "client": "10.0.0.0/8"}, "client: expected client_ip"),
        ({"token": TOKEN, "limiter": "redis://"}, "expected a Limiter, for example"),
        ({"token": TOKEN, "hosts": HOST}, "hosts: expected a list"),
        ({"token": TOKEN, "hosts": [f"https://{HOST}"]}, "without a scheme"),
        ({"token": TOKEN, "hosts": [f"h{number}" for number in range(65)]}, "at most 64"),
    ],
)
def test_what_cannot_work_ends_the_construction_and_shows_no_token(options: dict[str, Any], message: str) -> None:
    for tool in (Dashboard, AdminRoutes):
        with pytest.raises(ConfigurationError, match=f"{tool.__name__}.*{message}") as raised:
            tool(**{"limiter": Limiter(), **options})
        for token in (TOKEN, "fifteen-letters", "schlüssel"):
            assert token not in str(raised.value)


@pytest.mark.parametrize("tool", [Dashboard, AdminRoutes])
def test_an_option_that_there_is_not_is_named_with_the_one_that_is_meant(tool: Any) -> None:
    with pytest.raises(TypeError, match=rf"{tool.__name__}.*'tokn'; did you mean 'token'"):
        tool(Limiter(), tokn=TOKEN)


@pytest.mark.parametrize("field", [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic(TOKEN), basic(TOKEN, user="")])
async def test_a_token_opens_as_bearer_and_as_the_password_of_any_name(field: str, site: Site) -> None:
    assert (await call(site.app, LOOK, headers={"host": HOST, "authorization": field})).status == 200


@pytest.mark.parametrize(
    "field",
    [
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Token {TOKEN}",
        f"Bearer {TOKEN}x",
        "Bearer \xff",
        f"Basic {TOKEN}",
        "Basic ====",
        basic(TOKEN)[:-4],
        basic(TOKEN + "x"),
        basic("", user=TOKEN),
    ],
)
async def test_anything_else_opens_nothing(field: str, site: Site) -> None:
    headers = [(b"host", HOST.encode()), (b"authorization", field.encode("latin-1"))]
    assert (await call(site.app, LOOK, headers=headers)).status == 401
    right = [(b"host", HOST.encode()), *[(b"authorization", f"Bearer {TOKEN}".encode())] * 2]
    assert (await call(site.app, LOOK, headers=right)).status == 401, "two tokens at once"


async def test_a_change_is_recorded_under_a_name_that_shows_nothing_of_the_token(clock: FakeClock) -> None:
    for full, read in ((TOKEN, READ_TOKEN), ("o" * 20, "p" * 20)):
        site = Site(clock, token=[full, full + "2"], read_token=read)
        users = [said(await with_token(site.app, "GET", "/api/user", token)) for token in (full, full + "2", read)]
        assert users == [
            {"role": "full", "name": "token 1"},
            {"role": "full", "name": "token 2"},
            {"role": "read", "name": "read_token 1"},
        ]
        assert said(await with_token(site.app, "POST", CHANGE, full, NEW_BAN))["policy"] == "token 1"


async def test_a_reader_looks_and_changes_nothing(site: Site) -> None:
    browser = Browser(site.app, READ_TOKEN)
    assert await browser.look() == 200
    answer = await browser.change()
    assert (answer.status, said(answer)["code"]) == (403, "role")
    assert not await site.changed()
    await site.limiter.ban(NEW_BAN["target"], "1h")
    assert (await browser.send("DELETE", f"{CHANGE}?target={NEW_BAN['target']}")).status == 403
    assert await site.changed()


@pytest.mark.parametrize("answer", ["full", "read", User("full", "ann\n" + "x" * 100), None])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_auth_function_says_who_comes(answer: Any, is_async: bool, clock: FakeClock) -> None:
    async def later(request: Any) -> Any:
        return answer

    site = Site(clock, auth=later if is_async else lambda request: answer)
    got = await Browser(site.app, token=None).send("GET", "/api/user")
    if answer is None:
        assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer"), "no dialog that asks for a token"
    else:
        user = said(got)
        assert user["role"] == (answer if isinstance(answer, str) else answer.role)
        assert user["name"].startswith("admin" if isinstance(answer, str) else "ann\\n")
        assert len(user["name"]) <= 64


@pytest.mark.parametrize(
    "answer",
    [True, "admin", 1, User("admin", "ann"), User("full", 3), ("full", "ann"), ZeroDivisionError],  # type: ignore[arg-type]
)
async def test_an_auth_function_that_fails_or_says_anything_else_lets_nobody_in(answer: Any, clock: FakeClock) -> None:
    def auth(request: Any) -> Any:
        if isinstance(answer, type):
            raise answer
        return answer

    site = Site(clock, auth=auth)
    assert await Browser(site.app).look() == 500
    assert (await with_token(site.app, "GET", LOOK)).status == 500


async def wrong(site: Site, times: int, peer: str = "203.0.113.9") -> list[int]:
    return [await Browser(site.app, WRONG, peer=peer).look() for _ in range(times)]


async def test_the_sixth_wrong_token_of_an_address_in_a_minute_has_to_wait_and_the_right_one_never(site: Site) -> None:
    assert await wrong(site, 5) == [401] * 5
    site.clock.advance("25s")
    refused = await Browser(site.app, WRONG).send("GET", LOOK)
    assert (refused.status, said(refused)["code"], refused.headers["retry-after"]) == (429, "attempts", "35")
    assert await wrong(site, 1, "192.0.2.1") == [401], "another address"
    assert [await wrong(site, 1, f"2001:db8::{number}") for number in range(5)] == [[401]] * 5
    assert await wrong(site, 1, "2001:db8::ffff") == [429], "another address of the same network"
    assert await wrong(site, 1, "2001:db8:1::1") == [401]
    for _ in range(20):
        assert await Browser(site.app).look() == 200
        assert (await with_token(site.app, "GET", LOOK)).status == 200
    assert (await Browser(site.app).change()).status == 201
    site.clock.advance("35s")
    assert await wrong(site, 6) == [401] * 5 + [429], "and it has spent nothing"


async def test_what_a_function_does_not_know_counts_and_a_request_without_any_token_does_not(clock: FakeClock) -> None:
    site = Site(clock, auth=lambda request: "full" if request.headers.get("authorization") == "Basic right" else None)
    assert [await Browser(site.app, token=None).look() for _ in range(9)] == [401] * 9
    assert await wrong(site, 7) == [401] * 5 + [429] * 2
    assert await Browser(site.app).look(authorization="Basic right") == 200


async def test_wrong_tokens_are_logged_by_address_and_never_as_they_are(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await wrong(site, 10)
    assert WRONG not in caplog.text
    assert caplog.text.count("203.0.113.9") == 5


@pytest.mark.parametrize("on_error", ["allow", "deny", "local"])
async def test_while_the_store_is_away_tokens_open_all_the_same(on_error: Any, clock: FakeClock) -> None:
    store: Any = SickStore(clock)
    async with Limiter(store, on_error=on_error, deadline="30s") as limiter:
        door = Dashboard(limiter, token=TOKEN)
        store.error = StoreUnavailable("away")
        for token, status in ((TOKEN, 200), (WRONG, 401), (TOKEN, 200)):
            assert (await with_token(door, "GET", LOOK, token)).status == status


@needs_redis
async def test_wrong_tokens_are_counted_over_all_hosts(server: RedisServer) -> None:
    server.command("FLUSHALL")
    limiters = [Limiter.from_url(server.url, deadline="60s") for _ in range(3)]
    doors = [Dashboard(limiter, token=TOKEN) for limiter in limiters]
    guesses = [with_token(doors[n % 3], "GET", LOOK, f"{WRONG}{n:03}") for n in range(60)]
    answers = await asyncio.gather(*guesses, with_token(doors[0], "GET", LOOK))
    assert sorted(answer.status for answer in answers) == [200] + [401] * 5 + [429] * 55
    for limiter in limiters:
        await limiter.close()


def test_a_visit_works_under_trio_too(clock: FakeClock) -> None:
    async def visit() -> None:
        site = Site(clock)
        assert await wrong(site, 6) == [401] * 5 + [429]
        assert (await Browser(site.app).change()).status == 201
        assert await site.changed()

    anyio.run(visit, backend="trio")
