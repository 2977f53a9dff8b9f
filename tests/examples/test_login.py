"""The login holds out as its README shows, and is served with the tools of its operators."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from itsdangerous import TimestampSigner

from examples.login.accounts import DEVICE_S, Accounts, Devices
from examples.login.app import DEVICE, LARGEST_FORM, PER_ACCOUNT, make_app
from examples.login.visit import OPERATOR, PASSWORD, SECRET, SUPPORT
from slidegate import Limiter, MemoryStore, parse_limits
from slidegate.testing import FakeClock
from tests.examples.visits import running, shown

pytestmark = pytest.mark.all

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def test_the_command_plays_the_visit_of_the_readme_and_serves_the_site() -> None:
    with (
        running("examples.login", hints=4) as example,
        httpx.Client(base_url=example.url, trust_env=False, timeout=60) as http,
    ):
        assert example.visit == shown("login")
        assert "name=password type=password" in http.get("/").text
        assert http.post("/login", data={"name": "ann", "password": PASSWORD}).text == "welcome, ann\n"
        stranger = {"X-Forwarded-For": "203.0.113.9"}
        assert http.get("/.aws/credentials", headers=stranger).status_code == 403
        assert http.get("/", headers=stranger).status_code == 403
        token = re.search(r"operators show the token (\S+)$", example.hints, re.MULTILINE)
        assert token
        bans = http.get("/admin/bans", headers={"Authorization": f"Bearer {token[1]}"}).json()["bans"]
        assert [(ban["target"], ban["policy"]) for ban in bans] == [("203.0.113.9", "scanning")]
        assert "<title>" in http.get("/dashboard/", auth=("me", token[1])).text


@asynccontextmanager
async def site(clock: FakeClock | None = None) -> AsyncIterator[httpx.AsyncClient]:
    accounts = Accounts()
    accounts.add("ann", PASSWORD)
    async with Limiter(MemoryStore(clock=clock or FakeClock())) as limiter:
        app = make_app(limiter, accounts, secret=SECRET, token=OPERATOR, read_token=SUPPORT)
        transport = httpx.ASGITransport(app=app, client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://site.test") as http:
            yield http


async def log_in(http: httpx.AsyncClient, password: str = PASSWORD, name: str = "ann") -> int:
    return (await http.post("/login", data={"name": name, "password": password})).status_code


async def test_a_cookie_that_somebody_made_up_makes_no_known_device() -> None:
    clock = FakeClock()
    async with site(clock) as http:
        for forged in ("ann", Devices("another secret").cookie_for("ann"), Devices(SECRET).cookie_for("bob")):
            http.cookies.clear()
            http.cookies.set(DEVICE, forged)
            tries = parse_limits(PER_ACCOUNT)[0].amount
            seen = []
            for _ in range(tries):
                seen.append(await log_in(http, "a guess"))
                clock.advance("1m")
            assert seen == [401] * tries
            assert await log_in(http, "a guess") == 429
            http.cookies.set(DEVICE, Devices(SECRET).cookie_for("ann"))
            assert await log_in(http) == 200
            clock.advance("25h")


def test_a_device_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000
    monkeypatch.setattr(TimestampSigner, "get_timestamp", lambda signer: now_s)
    devices = Devices(SECRET)
    cookie = devices.cookie_for("ann")
    now_s += DEVICE_S
    assert devices.knows(cookie, "ann")
    now_s += 1
    assert not devices.knows(cookie, "ann")


@pytest.mark.parametrize(
    "body",
    [
        b"name=ann&password=" + b"x" * LARGEST_FORM,
        b"&".join(b"name=ann" for _ in range(11)),
    ],
    ids=["too long", "too many fields"],
)
async def test_a_form_that_is_none_of_ours_is_refused(body: bytes) -> None:
    async with site() as http:
        assert (await http.post("/login", content=body, headers=FORM)).status_code == 413


async def test_a_form_of_unknown_length_is_refused() -> None:
    async def drops() -> AsyncIterator[bytes]:
        yield b"name=ann"

    async with site() as http:
        assert (await http.post("/login", content=drops(), headers=FORM)).status_code == 413


async def test_support_may_look_and_an_operator_may_change() -> None:
    async with site() as http:
        desk, operator = ({"Authorization": f"Bearer {token}"} for token in (SUPPORT, OPERATOR))
        ban = {"target": "198.51.100.0/24", "duration": "1h", "reason": "scraping"}
        assert (await http.post("/admin/bans", json=ban, headers=desk)).status_code == 403
        assert (await http.post("/admin/bans", json=ban, headers=operator)).status_code == 201
        assert (await http.get("/admin/bans", headers=desk)).json()["total"] == 1
        assert [await log_in(http, "a guess") for _ in range(6)] == [401] * 5 + [429]
        seen = (await http.get("/admin/client", params={"key": "203.0.113.9"}, headers=desk)).json()
        assert {window["rule"]: window["used"] for window in seen["windows"]}["login"] == 5
