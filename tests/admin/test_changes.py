"""A change is made only if its sender is known, may change, and proves that our own page sent it."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from slidegate.admin.door import Door

from ..asgi import Answer, call
from .visits import HOST, READ_TOKEN, TOKEN, Browser, House, said, with_token

EVIL = "https://evil.example"


async def logged_in(house: House, token: str = TOKEN) -> Browser:
    browser = Browser(house.door)
    assert (await browser.log_in(token)).status == 200
    return browser


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"cookie": None, "x_csrf_token": None}, 401, "login"),
        ({"x_csrf_token": None}, 403, "csrf"),
        ({"x_csrf_token": "0" * 64}, 403, "csrf"),
        ({"origin": EVIL}, 403, "origin"),
        ({"origin": "null"}, 403, "origin"),
        ({"origin": None}, 403, "origin"),
        ({"origin": HOST}, 403, "origin"),
        ({"origin": f"http://{HOST}.evil.example"}, 403, "origin"),
        ({"origin": f"http://evil.example/{HOST}"}, 403, "origin"),
        ({"origin": f"http://{HOST}@evil.example"}, 403, "origin"),
        ({"origin": f"http://{HOST}:8080"}, 403, "origin"),
        ({"origin": f"ftp://{HOST}"}, 403, "origin"),
        ({"sec_fetch_site": "cross-site"}, 403, "origin"),
        ({"sec_fetch_site": "same-site"}, 403, "origin"),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403, "origin"),
        ({"content_type": None}, 415, "type"),
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
    headers: dict[str, Any], status: int, code: str
) -> None:
    house = House()
    browser = await logged_in(house)
    answer = await browser.send("POST", "/api/items", {"n": 1}, **headers)
    assert (answer.status, said(answer)["code"]) == (status, code)
    assert house.tool.changes == []
    # The same request with everything right is a change.
    assert (await browser.send("POST", "/api/items", {"n": 1})).status == 200
    assert house.tool.changes == [{"n": 1}]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": f"https://{HOST}"},
        {"origin": f"http://{HOST}:80"},
        {"origin": f"http://{HOST.upper()}."},
        {"host": f"{HOST}:80"},
        {"host": f"{HOST}:8000", "origin": f"http://{HOST}:8000"},
        {"host": "[::1]:8000", "origin": "http://[::1]:8000"},
        {"sec_fetch_site": None},
        {"content_type": "Application/JSON; charset=utf-8"},
    ],
)
async def test_one_place_has_several_spellings(headers: dict[str, Any]) -> None:
    house = House()
    assert (await (await logged_in(house)).send("POST", "/api/items", {}, **headers)).status == 200


async def test_a_page_without_tls_does_not_change_what_is_asked_by_https() -> None:
    house = House()
    browser = Browser(house.door, scheme="https")
    await browser.log_in()
    answer = await browser.send("POST", "/api/items", {}, origin=f"http://{HOST}")
    assert (answer.status, said(answer)["code"]) == (403, "origin")


async def test_two_fields_of_a_name_are_not_one_of_them() -> None:
    house = House()
    browser = await logged_in(house)
    fields = {"host": HOST, "origin": f"http://{HOST}", "content-type": "application/json"}
    fields["x-csrf-token"] = browser.csrf
    fields["cookie"] = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    for name, more in (("host", HOST), ("origin", EVIL), ("origin", f"http://{HOST}"), ("x-csrf-token", browser.csrf)):
        answer = await call(house.door, "/api/items", "POST", b"{}", headers=[*pairs, (name.encode(), more.encode())])
        assert answer.status in (403, 421), name
    answer = await call(house.door, "/api/items", "POST", b"{}", headers=[*pairs, (b"content-type", b"text/plain")])
    assert answer.status == 415
    assert house.tool.changes == []
    assert (await call(house.door, "/api/items", "POST", b"{}", headers=pairs)).status == 200


async def test_a_script_with_a_token_needs_no_proof_but_no_page_elsewhere_may_send_it() -> None:
    house = House()
    assert (await with_token(house.door, "POST", "/api/items", said={})).status == 200
    answer = await with_token(house.door, "POST", "/api/items", said={}, origin=EVIL)
    assert (answer.status, said(answer)["code"]) == (403, "origin")
    assert (await with_token(house.door, "GET", "/api/items", origin=EVIL)).status == 403


async def test_a_look_from_elsewhere_is_refused_and_a_link_to_the_page_is_not() -> None:
    house = House()
    browser = await logged_in(house)
    elsewhere = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert (await browser.send("GET", "/api/items", **elsewhere)).status == 403
    assert (await browser.send("GET", "/", **elsewhere)).status == 200
    assert (await browser.send("GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="no-cors")).status == 403


async def test_a_question_that_must_not_stand_in_an_address_is_open_to_readers() -> None:
    house = House()
    door = Door(house.tool.app(), house.access, prefix="/api", reading={"/items"})
    assert (await with_token(door, "POST", "/api/items", READ_TOKEN, {})).status == 200
    assert (await with_token(door, "PUT", "/api/items", READ_TOKEN, {})).status == 403
    browser = Browser(door)
    await browser.log_in(READ_TOKEN)
    assert (await browser.send("POST", "/api/items", {})).status == 200
    assert (await browser.send("POST", "/api/items", {}, x_csrf_token=None)).status == 403
    assert (await browser.send("POST", "/api/items/", {})).status == 403


# -- the names of the place ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "host", "origin", "status"),
    [
        ([HOST], HOST, f"https://{HOST}", 200),
        ([HOST], f"{HOST}:8000", f"http://{HOST}:8000", 200),
        ([f"{HOST}:8000"], f"{HOST}:8000", f"http://{HOST}:8000", 200),
        ([f"{HOST}:8000"], f"{HOST}:8001", f"http://{HOST}:8001", 421),
        ([f"{HOST}:8000"], f"{HOST}:8000", f"http://{HOST}:8001", 403),
        ([f"{HOST}:80"], HOST, f"http://{HOST}", 200),
        # A name of somebody else that leads to our address: his page says where it comes from.
        ([HOST], "evil.example", "http://evil.example", 421),
        ([HOST], "127.0.0.1", "http://127.0.0.1", 421),
        ([HOST], HOST, "http://evil.example", 403),
        # A proxy that asks under a name of its own.
        ([HOST, "127.0.0.1"], "127.0.0.1:8000", f"https://{HOST}", 200),
        (["[::1]"], "[::1]:8000", "http://[::1]:8000", 200),
        ((), "evil.example", "http://evil.example", 200),
    ],
)
async def test_a_tool_with_hosts_is_asked_under_no_other_name(hosts: Any, host: str, origin: str, status: int) -> None:
    house = House(hosts=hosts)
    answer = await with_token(house.door, "POST", "/api/items", said={}, host=host, origin=origin)
    assert answer.status == status
    assert len(house.tool.changes) == (status == 200)


async def test_no_file_is_handed_out_under_another_name() -> None:
    house = House(hosts=[HOST])
    assert (await call(house.door, "/", headers={"host": "evil.example"})).status == 421
    assert (await call(house.door, "/", headers={"host": HOST})).status == 200


@pytest.mark.parametrize("name", ["x-forwarded-host", "forwarded", "x-original-host"])
async def test_nobody_forwards_another_name(name: str) -> None:
    house = House()
    answer = await with_token(house.door, "POST", "/api/items", said={}, origin=EVIL, **{name: "evil.example"})
    assert answer.status == 403


# -- any request ---------------------------------------------------------------------------------------------------

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post"]
CHOICES: dict[str, list[Any]] = {
    "method": METHODS,
    "who": ["nobody", "session", "read session", "token", "read token", "wrong token", "old session", "own session"],
    "csrf": ["right", "wrong", None],
    "origin": [f"http://{HOST}", EVIL, "null", None],
    "host": [HOST, "evil.example", None],
    "site": ["same-origin", "cross-site", "none", None],
    "type": ["application/json", "text/plain", "application/x-www-form-urlencoded", None],
    "body": [b"{}", b"", b"a=b", b"[" * 40 + b"]" * 40, b'"' + b"x" * 65_535 + b'"'],
}


class Crowd:
    """All visitors there are, at one door."""

    async def gather(self) -> Crowd:
        self.house = House(hosts=[HOST])
        self.cookies: dict[str, str] = {}
        self.csrf: dict[str, str] = {}
        for who, token in (("session", TOKEN), ("read session", READ_TOKEN), ("old session", TOKEN)):
            browser = await logged_in(self.house, token)
            self.cookies[who] = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
            self.csrf[who] = browser.csrf
            if who == "old session":
                assert (await browser.send("DELETE", "/api/session")).status == 204
        self.cookies["own session"] = "slidegate_session=WyJhIiwxXQ.c2lnbmVk"
        return self

    async def send(self, asked: dict[str, Any]) -> Answer:
        who = asked["who"]
        headers = {"host": asked["host"], "origin": asked["origin"], "sec-fetch-site": asked["site"]}
        headers["content-type"] = asked["type"]
        headers["cookie"] = self.cookies.get(who)
        right = self.csrf.get(who, "0" * 64)
        headers["x-csrf-token"] = {"right": right, "wrong": "1" * 64, None: None}[asked["csrf"]]
        if "token" in who:
            tokens = {"token": TOKEN, "read token": READ_TOKEN, "wrong token": "w" * 20}
            headers["authorization"] = f"Bearer {tokens[who]}"
        sent = {name: value for name, value in headers.items() if value is not None}
        return await call(self.house.door, "/api/items", asked["method"], asked["body"], headers=sent)


def may_change(asked: dict[str, Any]) -> bool:
    """Say, in one sentence of conditions, which requests change something."""
    here = asked["host"] == HOST and asked["origin"] in (f"http://{HOST}", None) and asked["site"] != "cross-site"
    proven = asked["csrf"] == "right" and asked["origin"] is not None
    known = asked["who"] == "token" or (asked["who"] == "session" and proven)
    empty = asked["method"] == "DELETE" and asked["body"] == b""
    sound = asked["body"] in (b"{}", b"") and (empty or asked["type"] == "application/json")
    return asked["method"] in ("POST", "PUT", "PATCH", "DELETE") and here and known and sound


async def test_every_request_with_one_condition_broken_changes_nothing() -> None:
    crowd = await Crowd().gather()
    good = {"csrf": "right", "origin": f"http://{HOST}", "host": HOST, "site": "same-origin"}
    good.update({"type": "application/json", "body": b"{}"})  # type: ignore[dict-item]
    changed = 0
    for method, who in product(METHODS, CHOICES["who"]):
        crowd.house.clock.advance("61s")  # wrong tokens lock the right ones out for a minute
        for name, choices in CHOICES.items():
            for value in choices if name not in ("method", "who") else ():
                asked = {**good, "method": method, "who": who, name: value}
                before = len(crowd.house.tool.changes)
                await crowd.send(asked)
                assert len(crowd.house.tool.changes) - before == may_change(asked), asked
                changed += may_change(asked)
    assert changed > 50
