"""What the dashboard reads and changes: sums, snapshots, keys of any characters, and whatever else is sent."""

import re
from collections import Counter
from functools import cache
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import RateLimitMiddleware, Rule
from slidegate.core import parse_duration_us
from slidegate.ops.dashboard.service import WINDOWS

from ...asgi import hello, statuses
from .site import HOSTILE, NOW_US, VIEWS, Page, Site


async def read(site: Site, path: str, **query: str) -> Any:
    status, found = await site.ask("GET", path, **query)
    assert status == 200, found
    return found


@pytest.mark.parametrize("window", WINDOWS)
async def test_statistics_count_the_requests_of_the_application(window: str, site: Site) -> None:
    await site.visit(times=23)
    found = await read(site, "statistics", window=window)
    total, rule = found["total"], found["rules"]["all"]
    assert (total["passed"], total["refused"], total["limited"], total["shadow_refused"]) == (20, 3, 3, 18)
    assert (rule["passed"], rule["refused"], found["routes"]["GET /"]["passed"]) == (20, 3, 20)
    for name in ("passed", "refused", "shadow_refused"):
        assert sum(step[name] for step in found["steps"]) == total[name]
    window_s = parse_duration_us(window) / 1_000_000
    assert (found["window_s"], found["step_s"] * len(found["steps"]), len(found["workers"])) == (window_s, window_s, 1)
    last_at = found["start_at"] + window_s
    assert last_at - found["step_s"] <= NOW_US / 1_000_000 <= last_at


async def test_a_limits_function_shows_its_fallback() -> None:
    rule = Rule("/api", lambda request: "5/minute", fallback_limits="2/minute", name="plan")
    site = Site(middleware={"rules": [rule]})
    await site.visit("/api", client="192.0.2.1")
    await site.limiter.hit("192.0.2.3", "2/minute", rule="plan")  # as when its function has failed
    found = await read(site, "client", key="192.0.2.3")
    assert [window["amount"] for window in found["windows"]] == [2]


@pytest.mark.parametrize("key", [*HOSTILE, "x" * 64])
async def test_keys_of_any_characters_are_found_and_lifted_and_shown_as_text_in_every_view(
    key: str, site: Site
) -> None:
    await site.limiter.hit(key, "5/minute", rule="all")
    keyed = RateLimitMiddleware(hello, rules=[Rule("*", "1/minute", key=lambda _: key)], limiter=site.limiter)
    assert await statuses(keyed, 2) == [200, 429]
    assert [one["details"]["status"] for one in (await read(site, "client", key=key))["refusals"]] == ["429"]
    status, _ = await site.ask("PUT", "bans", {"key": key, "duration": "1h", "reason": key})
    assert status == (200 if key.startswith("user:") else 400)
    await site.limiter.ban(key, "1h", reason=key, by=key)
    (ban,) = (await read(site, "bans", q=key[:3]))["bans"]
    assert ban["key"] == key
    assert ban["reason"].isprintable()
    seen = await read(site, "client", key=key)
    assert (seen["key"], seen["ban"]["key"], seen["windows"][0]["used"]) == (key, key, 1)
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
    status, found = await site.ask("PUT", "bans", {"key": long[:60_000], "duration": "1h"})
    assert (status, found["key"][:5], len(found["key"])) == (200, "long#", 37)
    assert (await site.ask("PUT", "bans", {"key": long, "duration": "1h"}))[0] == 413


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = ["window", "key", "name", "value", "duration", "reason", "limit", "q"]
VALUES = st.sampled_from(["1h", "5m", "0", "1", "203.0.113.7", "user:42", "header:X-A", "all"]) | st.text(max_size=9)
OPERATIONS = [(method, name) for method in ("GET", "PUT", "DELETE") for name in ("bans", "limits")]


@given(
    st.sampled_from([*OPERATIONS, ("GET", "statistics"), ("GET", "client")]),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    JSON.filter(lambda body: body is not None) | st.dictionaries(st.sampled_from(NAMES), JSON | VALUES, max_size=4),
)
async def test_whatever_is_sent_gets_an_answer_or_a_sentence(
    operation: tuple[str, str], query: dict[str, str], body: Any
) -> None:
    method, name = operation
    status, found = await (Site().ask(method, name, body) if method == "PUT" else Site().ask(method, name, **query))
    assert status in (200, 400, 404), found
    assert (status == 200) == ("error" not in found)
    assert status == 200 or (list(found) == ["error"] and found["error"].isprintable())


shared_site = cache(Site)
"""One for all examples: the templates of a dashboard take longer than a form."""


@given(
    st.sampled_from(VIEWS),
    st.sampled_from(["ban", "unban", "change", "restore", "find"]),
    st.dictionaries(st.sampled_from([*NAMES, "kind"]), VALUES, max_size=4),
)
async def test_whatever_a_form_has_it_leads_on_or_says_why_not(view: str, do: str, fields: dict[str, str]) -> None:
    answer = await shared_site().submit(view, do=do, **fields)
    assert answer.status in (303, 400, 404)
    assert answer.status == 303 or [*filter(None, Page(answer).alerts)]
