"""The JSON API as scripts use it: six operations, and sentences for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from fastapi import FastAPI
from hypothesis import strategies as st
from starlette.testclient import TestClient

from slidegate import BanPolicy, Limiter, Quota, RateLimitMiddleware, Rule, header
from slidegate.dashboard import Dashboard
from slidegate.ops.dashboard.fields import WINDOWS

from ...asgi import call
from .site import HOSTILE, NOW_US, TOKEN, Site

CHANGE = {"name": "all", "limit": "3/minute", "duration": "2h", "reason": "slow"}
KEY = 'key: expected an address, a network or a key, for example "203.0.113.7"'
LENGTH = 'duration: expected a length of time up to 400 days, for example "1h", or "permanent", not '
FIELDS = {
    "statistics": "window_s step_s start_at workers total rules routes steps",
    "client?key=203.0.113.9": "key now_at ban windows refusals",
    "bans": "bans matching total",
    "limits": "limits off",
}
"""The fields of each answer to a GET."""


async def read(site: Site, path: str, **query: str) -> Any:
    status, found = await site.ask("GET", path, **query)
    assert status == 200, found
    return found


@pytest.mark.parametrize("path", FIELDS)
async def test_every_operation_answers_before_and_after_there_is_traffic(path: str, site: Site) -> None:
    name, _, key = path.partition("?key=")
    query = {"key": key} if key else {}
    for _ in range(2):
        assert list(await read(site, name, **query)) == FIELDS[path].split()
        await site.visit("/", times=30)
        await site.limiter.ban("user:1", "1h")
        site.clock.advance("10s")


# -- statistics and clients --------------------------------------------------------------------------------------------


async def test_statistics_count_the_requests_of_the_application(site: Site) -> None:
    await site.visit(times=23)
    found = await read(site, "statistics", window="5m")
    total = found["total"]
    assert (total["passed"], total["refused"], total["limited"], total["shadow_refused"]) == (20, 3, 3, 18)
    rule = found["rules"]["all"]
    assert (rule["passed"], rule["refused"]) == (20, 3)
    assert [sum(column) for column in zip(*rule["trend"], strict=True)] == [20, 3]
    assert found["routes"]["GET /"]["passed"] == 20
    assert sum(step["passed"] for step in found["steps"]) == 20
    assert found["window_s"] == 300
    last_at = found["start_at"] + found["step_s"] * len(found["steps"])
    assert last_at - found["step_s"] <= NOW_US / 1_000_000 <= last_at
    assert len(found["workers"]) == 1


@pytest.mark.parametrize("window", WINDOWS)
async def test_steps_of_every_window_add_up_to_its_total(window: str, site: Site) -> None:
    for _ in range(4):
        await site.visit(times=3)
        await site.get("")
        site.clock.advance("13m" if window in ("24h", "6h") else "5s")
    found = await read(site, "statistics", window=window)
    assert len(found["steps"]) <= 72
    for name in ("passed", "refused", "shadow_refused"):
        assert sum(step[name] for step in found["steps"]) == found["total"][name]
    assert found["total"]["passed"] + found["total"]["refused"] >= 12


async def test_a_snapshot_is_shared_for_two_seconds_or_ten_and_then_made_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    statistics = site.limiter_statistics()
    original = statistics.read

    async def noted(window: str) -> Any:
        reads.append(window)
        return await original(window)

    monkeypatch.setattr(statistics, "read", noted)
    for window, interval_us in (("5m", 2_000_000), ("1h", 10_000_000)):
        reads.clear()
        for _ in range(5):
            await read(site, "statistics", window=window)
            await site.page(f"?window={window}")
        assert reads == [window]
        site.clock.advance(us=interval_us - 1)
        await read(site, "statistics", window=window)
        assert reads == [window]
        site.clock.advance(us=1)
        await read(site, "statistics", window=window)
        assert reads == [window] * 2


async def test_client_is_shown_with_its_windows_its_ban_and_its_refusals(site: Site) -> None:
    await site.visit("/api/a", times=7, x_api_key="k123")
    key = site.limiter.key_for(header("X-API-Key").of("k123"))
    found = await read(site, "client", key=key)
    windows = {one["name"]: one for one in found["windows"]}
    assert (windows["api_60"]["used"], windows["api_60"]["remaining"], windows["api_60"]["amount"]) == (5, 0, 5)
    assert (windows["api_3600"]["limit"], windows["api_3600"]["used"]) == ("50/1h", 5)
    assert sum(one["units"] for one in windows["api_60"]["slices"]) == 5
    assert windows["api_60"]["retry_after_s"] == 60
    assert [one["details"]["rule"] for one in found["refusals"]] == ["api", "api"], "each is labelled by its rule"
    await site.limiter.ban("203.0.113.0/24", "1h", reason="why", by="bob")
    client = await read(site, "client", key="203.0.113.9")
    assert (client["ban"]["key"], client["ban"]["by"], client["ban"]["reason"]) == ("203.0.113.0/24", "bob", "why")
    assert client["ban"]["until_at"] - client["ban"]["since_at"] == 3_600
    assert {one["name"]: one["refuses"] for one in client["windows"]} == {"all": True, "tighter": False}


async def test_a_limits_function_shows_its_fallback() -> None:
    rule = Rule("/api", lambda request: "5/minute", fallback_limits="2/minute", name="plan")
    site = Site(middleware={"rules": [rule]})
    await site.visit("/api", client="192.0.2.1")
    await site.limiter.hit("192.0.2.3", "2/minute", rule="plan")  # as when its function has failed
    found = await read(site, "client", key="192.0.2.3")
    assert [(window["amount"], window["fallback"]) for window in found["windows"]] == [(2, True)]


# -- bans --------------------------------------------------------------------------------------------------------------


async def test_ban_is_put_replaced_listed_and_lifted(site: Site) -> None:
    key = "203.0.113.0/24"
    status, ban = await site.ask("PUT", "bans", {"key": key, "duration": "1h", "reason": "why"})
    assert (status, ban["key"], ban["reason"], ban["level"], ban["by"]) == (200, key, "why", 0, "api")
    assert ban["until_at"] - ban["since_at"] == 3_600
    assert await site.visit(client="203.0.113.7") == [403]
    assert (await read(site, "client", key="203.0.113.7"))["ban"] == ban
    _, longer = await site.ask("POST", "bans", {"key": key, "duration": "permanent"})
    assert (longer["until_at"], longer["reason"]) == (None, "")
    assert (await read(site, "bans"))["bans"] == [longer]
    status, wrong = await site.ask("DELETE", "bans", key="203.0.113.7")
    assert (status, wrong["error"]) == (404, "'203.0.113.7' has no ban and no strikes.")
    assert await site.ask("DELETE", "bans", key=key) == (200, {"key": key})
    assert await read(site, "bans") == {"bans": [], "matching": 0, "total": 0}
    # Strikes are deleted with a ban.
    scanners = BanPolicy("3/10m", "1h", name="scanners")
    await site.limiter.strike("203.0.113.7", scanners, 2)
    assert (await site.ask("DELETE", "bans", key="203.0.113.7"))[0] == 200
    assert await site.limiter.strike("203.0.113.7", scanners) is None


@pytest.mark.parametrize("kind", ["header", "cookie", "query"])
async def test_client_is_banned_by_the_value_that_it_sends(kind: str, site: Site) -> None:
    said = {"kind": kind, "name": "X-API-Key", "value": "k123-secret", "duration": "1h"}
    status, ban = await site.ask("PUT", "bans", said)
    assert status == 200
    assert ban["key"].startswith(f"{kind}:")
    assert "k123" not in str(ban)
    if kind == "header":
        assert await site.visit("/api/a", x_api_key="k123-secret") == [403]
        assert await site.visit("/api/a", x_api_key="another") == [200]


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "header", "name": "X API", "value": "k123-secret"},
        {"kind": "header", "name": "X-API-Key", "value": "k123-secret\n"},
        {"kind": "header", "name": "X-API-Key", "value": "k123-secret" * 200},
        {"kind": "headr", "name": "X-API-Key", "value": "k123-secret"},
        {"kind": "cookie", "value": "k123-secret"},
        {"key": "k123-secret"},
    ],
)
async def test_an_error_about_a_value_does_not_contain_it(
    said: dict[str, str], site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    status, found = await site.ask("PUT", "bans", {**said, "duration": "1h"})
    assert status == 400
    assert "expected" in found["error"]
    assert "k123" not in found["error"] + caplog.text


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("192.0.2.1", True),
        ("192.0.2.0/24", True),
        ("::ffff:192.0.2.1", True),
        ("192.0.2.2", False),
        ("user:192.0.2.1", False),
    ],
)
async def test_to_ban_ones_own_address_takes_force(key: str, own: bool, site: Site) -> None:
    status, found = await site.ask("PUT", "bans", {"key": key, "duration": "1h"})
    assert status == (409 if own else 200)
    assert len([ban async for ban in site.limiter.bans()]) == (0 if own else 1)
    if own:
        assert "Send force=true" in found["error"]
        assert (await site.ask("PUT", "bans", {"key": key, "duration": "1h", "force": True}))[0] == 200


async def test_bans_are_listed_newest_first_and_found_by_a_text(site: Site) -> None:
    for number in range(30):
        site.clock.advance(us=number % 3)  # some begin in the same microsecond
        reason = "odd" if number % 2 else "Even"
        await site.limiter.ban(f"user:{number:02}", "1h", reason=reason, by=f"policy {number % 5}")
    found = await read(site, "bans")
    starts = [ban["since_at"] for ban in found["bans"]]
    assert starts == sorted(starts, reverse=True)
    assert len({ban["key"] for ban in found["bans"]}) == found["total"] == 30
    assert (await read(site, "bans", limit="4"))["bans"] == found["bans"][:4]
    for text, count in (("EVEN", 15), ("policy 3", 6), ("user:07", 1), ("nothing", 0)):
        some = await read(site, "bans", q=text)
        assert (len(some["bans"]), some["matching"], some["total"]) == (count, count, 30)


@pytest.mark.parametrize("key", [*HOSTILE, "x" * 64])
async def test_key_of_any_characters_is_seen_and_lifted_and_banned_if_it_has_a_kind(key: str, site: Site) -> None:
    await site.limiter.hit(key, "5/minute", rule="all")
    status, _ = await site.ask("PUT", "bans", {"key": key, "duration": "1h", "reason": key})
    assert status == (200 if key.startswith("user:") else 400)
    await site.limiter.ban(key, "1h", reason=key)
    (ban,) = (await read(site, "bans", q=key[:3]))["bans"]
    assert ban["key"] == key
    assert ban["reason"].isprintable()
    seen = await read(site, "client", key=key)
    assert (seen["key"], seen["ban"]["key"], seen["windows"][0]["used"]) == (key, key, 1)
    assert await site.ask("DELETE", "bans", key=key) == (200, {"key": key})
    assert (await site.ask("DELETE", "bans", key=key))[0] == 404


async def test_64_kib_of_a_key_are_digested_or_refused_and_never_shown(site: Site) -> None:
    long = "user:" + "<script>" * 8_192
    await site.limiter.hit(long, "5/minute", rule="all")
    assert await site.visit("/api/a", x_api_key="k" * 60_000) == [200]
    page = (await site.get("clients")).body.decode()
    assert "header:x-api-key#" in page
    assert "kkkk" not in page
    status, found = await site.ask("PUT", "bans", {"key": long[:60_000], "duration": "1h"})
    assert status == 400
    assert len(found["error"]) < 400
    assert (await site.ask("PUT", "bans", {"key": long, "duration": "1h"}))[0] == 413


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_limit_is_changed_and_restored(site: Site) -> None:
    limits = {one["name"]: one for one in (await read(site, "limits"))["limits"]}
    assert list(limits) == ["api_60", "api_3600", "all", "tighter"]
    assert (limits["all"]["limit"], limits["all"]["most"], limits["all"]["change"]) == ("20/1m", 200, None)
    assert [name for name, one in limits.items() if one["shadow"]] == ["tighter"]
    status, made = await site.ask("PUT", "limits", CHANGE)
    since_at = NOW_US / 1_000_000
    expected = {"name": "all", "limit": "3/1m", "by": "api", "reason": "slow", "workers": 1}
    assert (status, made) == (200, {**expected, "since_at": since_at, "until_at": since_at + 7_200})
    assert await site.visit(times=4) == [200, 200, 200, 429]
    await site.ask("PUT", "limits", {**CHANGE, "limit": "4", "duration": "1h"})
    changed = {one["name"]: one for one in (await read(site, "limits"))["limits"]}["all"]
    assert (changed["limit"], changed["configured"], changed["change"]["until_at"]) == (
        "4/1m",
        "20/1m",
        since_at + 3_600,
    )
    assert await site.visit(times=2) == [200, 429]
    assert await site.ask("DELETE", "limits", name="all") == (200, {"name": "all"})
    status, again = await site.ask("DELETE", "limits", name="all")
    assert (status, again["error"]) == (404, "'all' is not the name of a changed limit.")
    assert await site.visit(times=20) == [200] * 16 + [429] * 4


async def test_all_workers_are_switched_off_and_on(site: Site) -> None:
    status, made = await site.ask("PUT", "limits", {"name": "*", "limit": "off", "duration": "10m"})
    assert (status, made["limit"]) == (200, "off")
    assert await site.visit(times=40) == [200] * 40
    assert (await read(site, "limits"))["off"] == made
    assert await site.ask("DELETE", "limits", name="*") == (200, {"name": "*"})
    assert (await read(site, "limits"))["off"] is None
    assert 429 in await site.visit(times=40)


async def test_every_kind_of_limit_is_changed_by_its_amount_alone() -> None:
    rule = Rule("*", ["9/minute", Quota("10/day")], concurrency=4, name="plan")
    site = Site(middleware={"rules": [rule]})
    for one in (await read(site, "limits"))["limits"]:
        status, made = await site.ask("PUT", "limits", {**CHANGE, "name": one["name"], "limit": "7"})
        assert status == 200, made
    amounts = [one["amount"] for one in (await read(site, "limits"))["limits"]]
    assert amounts == [7, 7, 7]


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "values", "message"),
    [
        ("GET", "statistics", {"window": "2"}, 'window: expected one of 1m, 5m, 10m, 30m, 1h, 3h, 6h, 12h, 24h, not "'),
        ("GET", "statistics", {"windw": "1m"}, "there is no field 'windw'; did you mean 'window'?"),
        ("GET", "client", {}, "key: it is missing; expected an address, a network or a key, for example"),
        ("GET", "client", {"key": ""}, "key: expected text that is not empty"),
        ("GET", "bans", {"limit": "0"}, 'limit: expected a whole number from 1 to 1000, not "0"'),
        ("GET", "bans", {"limit": "1001"}, 'limit: expected a whole number from 1 to 1000, not "1001"'),
        ("GET", "bans", {"q": "x" * 1_025}, "q: expected a text in key, reason or by"),
        ("GET", "limits", {"name": "all"}, "there is no field 'name'"),
        ("DELETE", "bans", {"target": "user:1"}, "there is no field 'target'"),
        ("DELETE", "limits", {}, "name: it is missing; expected the name of a limit"),
        ("PUT", "bans", {"duration": 3600}, LENGTH + "3600"),
        ("PUT", "bans", {"duration": "401d"}, "ban: duration: expected at most 400 days"),
        ("PUT", "bans", {"duration": None}, LENGTH + "null"),
        ("PUT", "bans", {"reason": {"a": 1}}, "reason: expected at most 1024 characters for operators, not an object"),
        ("PUT", "bans", {"force": 1}, "force: expected true or false, not 1"),
        ("PUT", "bans", {"key": "x" * 1_025}, KEY),
        ("PUT", "bans", {"key": ["203.0.113.7"]}, KEY),
        *(("PUT", "bans", {"key": text}, "key: expected") for text in ("203.0.113.O", "example.com", "no-ip", "ann")),
        *(("PUT", "bans", {"key": text}, "key: expected") for text in ("300.1.1.1", "192.0.2.0/33", ":x", "user:", "")),
        ("PUT", "bans", {"key": "0.0.0.0/0", "force": True}, "ban: '0.0.0.0/0' contains every address"),
        ("PUT", "bans", {"durations": 1}, "there is no field 'durations'; did you mean 'duration'?"),
        ("PUT", "limits", {"name": "al"}, "limit 'al': no rule has a limit of this name"),
        ("PUT", "limits", {"limit": "3/hour"}, "limit 'all': in the code it is '20/1m'"),
        ("PUT", "limits", {"limit": "201/minute"}, "limit 'all': expected an amount from 1 to 200"),
        ("PUT", "limits", {"limit": "201"}, "limit 'all': expected an amount from 1 to 200"),
        ("PUT", "limits", {"limit": "0"}, "limits: '0/1m' at column 1"),
        ("PUT", "limits", {"limit": 5}, 'limit: expected the limit with another amount, for example "50/minute", not'),
        ("PUT", "limits", {"duration": "31d"}, "override: duration: expected"),
        ("PUT", "limits", {"force": True}, "there is no field 'force'"),
    ],
)  # fmt: skip
async def test_field_that_is_wrong_is_named_with_what_was_expected(
    method: str, path: str, values: dict[str, Any], message: str, site: Site
) -> None:
    if method == "PUT":
        good = CHANGE if path == "limits" else {"key": "203.0.113.7", "duration": "1h"}
        status, found = await site.ask(method, path, {**good, **values})
    else:
        status, found = await site.ask(method, path, **values)
    assert status == 400
    assert found["error"].startswith(message), found
    assert len(found["error"]) < 600
    assert [ban async for ban in site.limiter.bans()] == []
    assert await site.limiter.overrides() == []


@pytest.mark.parametrize("path", ["", "nothing", "bans/", "bans/203.0.113.7", "clients", "openapi.json"])
async def test_unknown_operation_is_answered_with_the_nearest(path: str, site: Site) -> None:
    status, found = await site.ask("GET", path)
    assert status == 404
    assert ("did you mean 'client'?" in found["error"]) == (path == "clients")


async def test_field_that_is_repeated_is_refused(site: Site) -> None:
    answer = await site.get("api/bans?limit=1&limit=2")
    assert (answer.status, answer.body) == (400, b'{"error": "a field is given more than once; give it once"}')


async def test_changes_of_a_browser_are_recorded_under_its_user(site: Site) -> None:
    said = b'{"key": "user:1", "duration": "1h"}'
    assert (await site.send("PUT", "api/bans", said, content_type="application/json")).status == 200
    (ban,) = (await read(site, "bans"))["bans"]
    assert ban["by"] == "ann"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TYPE = {"Content-Type": "application/json"}
NAMES = ["window", "key", "kind", "name", "value", "duration", "reason", "force", "limit", "q"]
VALUES = st.sampled_from(["1h", "5m", "0", "1", "203.0.113.7", "user:42", "header", "all"]) | st.text(max_size=9)


def test_whatever_is_sent_is_answered_or_refused_in_a_sentence_in_fastapi_too() -> None:
    app, limiter = FastAPI(), Limiter()
    app.mount("/ops/dashboard", Dashboard(limiter, token=TOKEN))
    rules = [Rule("/ops/{rest:path}", exempt=True), Rule("*", "5/minute", name="all")]
    app.add_middleware(RateLimitMiddleware, rules=rules, limiter=limiter)
    operations = ["GET statistics", "GET client", "GET bans", "PUT bans", "DELETE bans", "GET limits", "PUT limits"]
    with TestClient(app, headers={"Authorization": f"Bearer {TOKEN}"}) as client:

        @hypothesis.given(
            st.sampled_from([*operations, "DELETE limits"]),
            st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
            JSON | st.dictionaries(st.sampled_from(NAMES), JSON | VALUES, max_size=4),
        )
        def ask(operation: str, query: dict[str, str], body: Any) -> None:
            method, _, name = operation.partition(" ")
            sent: Callable[..., Any] = client.request
            more = {"content": json.dumps(body), "headers": TYPE} if method == "PUT" else {"params": query}
            answer = sent(method, f"/ops/dashboard/api/{name}", **more)
            assert answer.status_code in (200, 400, 404, 409), answer.text
            assert answer.headers["content-type"] == "application/json"
            assert (answer.status_code == 200) == ("error" not in answer.json())
            if answer.status_code != 200:
                assert list(answer.json()) == ["error"]
                assert answer.json()["error"].isprintable()

        ask()


async def test_endpoint_answers_below_the_mount_of_another_root_path(site: Site) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    answer = await call(site.dashboard, "/api/limits", headers=headers, root_path="/behind/a/proxy")
    assert answer.status == 200
