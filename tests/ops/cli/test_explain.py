"""`slidegate explain`: why a client is refused, with real stores; and what limits admit, in words."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule, header
from slidegate.ops.statistics import Statistics

from ...asgi import hello, statuses
from .command import Command, start, use_store

FILE = '[[rules]]\npath = "*"\nname = "api"\nlimits = "100/hour"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file with the rule ``api``, 100/hour."""
    path = tmp_path / "slidegate.toml"
    path.write_text(FILE, "utf-8")
    return path


async def used_by_a_client(limiter: Limiter) -> None:
    for _ in range(7):
        await limiter.hit("203.0.113.7", "100/hour", rule="api")
    await limiter.hit(header("X-API-Key").of("k123"), "100/hour", rule="api")
    await limiter.ban("203.0.113.0/24", "1h", reason="scan")


# -- a client ----------------------------------------------------------------------------------------------------------


def test_key_without_anything_is_not_refused(url: str, slidegate: Command) -> None:
    words = ("explain", "user:1", "--rule", "api=5/minute", "--store", url)
    (state,) = slidegate(*words, "--json").rows
    assert (state["refused"], state["ban"], state["requests_5m"], state["refusals"]) == (False, None, None, [])
    assert (state["windows"][0]["used"], state["windows"][0]["slices"]) == (0, [])
    assert slidegate(*words).out.startswith("user:1 is not refused: it has no ban, and every limit below has room\n")
    ended = slidegate("explain", "user:1", "--store", url)
    assert ended.out == "user:1 is not refused: it has no ban\n"
    assert "name the rules with --rules FILE or --rule NAME=LIMITS" in ended.err


def test_ban_around_a_client_refuses_it_and_its_windows_are_shown(url: str, slidegate: Command) -> None:
    use_store(url, used_by_a_client)
    words = ("explain", "203.0.113.7", "--rule", "api=100/hour", "--store", url)
    (state,) = slidegate(*words, "--json").rows
    (window,) = state["windows"]
    assert state["refused"]
    assert (window["name"], window["used"], window["remaining"], window["retry_after_s"]) == ("api", 7, 93, 0)
    assert sum(part["count"] for part in window["slices"]) == 7
    assert (state["ban"]["key"], state["ban"]["reason"]) == ("203.0.113.0/24", "scan")
    assert 3_500 < state["ban"]["left_s"] <= 3_600
    text = slidegate(*words).out
    banned = r"  by the ban of 203.0.113.0/24 for (1 h|59 min \d+ s), until 20.+Z; by manual: scan"
    assert re.match(rf"203.0.113.7 is refused\n{banned}\n", text)
    assert re.search(r"^api +100/1h +7 +93 +now +(1 h|59 min)", text, re.MULTILINE)


def test_limit_without_room_refuses_a_client_until_it_has_room_again(url: str, slidegate: Command) -> None:
    async def spend(limiter: Limiter) -> None:
        for _ in range(5):
            assert await limiter.hit("203.0.113.7", "5/hour; 100/day", rule="login")

    use_store(url, spend)
    words = ("explain", "203.0.113.7", "--rule", "login=5/hour; 100/day", "--store", url)
    (state,) = slidegate(*words, "--json").rows
    assert state["refused"]
    assert [window["retry_after_s"] > 0 for window in state["windows"]] == [True, False]
    first, second, *_ = slidegate(*words).out.splitlines()
    assert first == "203.0.113.7 is refused"
    span = r"(1 h|59 min( \d+ s)?)"
    assert re.fullmatch(rf"  by login_3600 for {span}, until \S+Z: 5 of 5/1h are used", second)

    async def reset(limiter: Limiter) -> bool:
        return await limiter.reset("203.0.113.7")

    assert use_store(url, reset)
    assert not slidegate(*words, "--json").rows[0]["refused"]


def test_shadow_rules_and_permits_are_what_they_are(lmdb_url: str, file: Path, slidegate: Command) -> None:
    file.write_text(
        'rules = [{ path = "*", name = "api", limits = "1/hour", shadow = true },'
        ' { path = "/export", name = "export", limits = "9/hour", concurrency = 2 }]\n',
        "utf-8",
    )

    async def serve(limiter: Limiter) -> None:
        rule = Rule("*", "1/hour", name="api", shadow=True)
        assert await statuses(RateLimitMiddleware(hello, limiter=limiter, rules=[rule]), 3) == [200] * 3

    use_store(lmdb_url, serve)
    words = ("explain", "203.0.113.9", "--rules", str(file), "--store", lmdb_url)
    (state,) = slidegate(*words, "--json").rows
    assert not state["refused"], "a shadow rule reports and never refuses"
    windows = {window["name"]: window for window in state["windows"]}
    assert (windows["api"]["remaining"], windows["api"]["shadow"]) == (0, True)
    assert (windows["export_concurrency"]["used"], windows["export_concurrency"]["shadow"]) == (0, False)
    assert "api (shadow)" in slidegate(*words).out


@pytest.mark.parametrize(
    ("list_name", "refused", "text"),
    [("blocklist", True, "  by the blocklist\n"), ("allowlist", False, "is on the allowlist and never refused\n")],
)
def test_lists_of_the_file_decide_before_anything_is_counted(
    list_name: str, refused: bool, text: str, lmdb_url: str, file: Path, slidegate: Command
) -> None:
    use_store(lmdb_url, used_by_a_client)
    file.with_name("listed.netset").write_text("198.51.100.0/24\n203.0.113.7\n", "utf-8")
    file.write_text(f'{list_name} = "listed.netset"\n{FILE}', "utf-8")
    words = ("explain", "203.0.113.7", "--rules", str(file), "--store", lmdb_url)
    (state,) = slidegate(*words, "--json").rows
    assert (state[list_name], state["refused"]) == (True, refused)
    assert text in slidegate(*words).out


def test_rules_of_a_file_are_those_that_count(url: str, file: Path, slidegate: Command) -> None:
    use_store(url, used_by_a_client)
    words = ("explain", "203.0.113.7", "--store", url)
    (state,) = slidegate(*words, "--rules", str(file), "--json").rows
    assert [(window["name"], window["used"]) for window in state["windows"]] == [("api", 7)]
    file.write_text('default_limits = "5/minute"\n', "utf-8")
    assert "default_limits count each route by itself" in slidegate(*words, "--rules", str(file)).err
    file.write_text("rules = 3\n", "utf-8")
    assert slidegate(*words, "--rules", str(file)).code == 1
    assert slidegate(*words, "--rule", "api").code == 2
    assert slidegate(*words, "--rule", "api=lots").code == 2


@pytest.mark.parametrize("rules", ["file", "words"])
@pytest.mark.parametrize(
    ("changed", "limit", "remaining"),
    [("9/hour", "9/1h", 2), ("3/hour", "3/1h", 0), ("50/minute", "100/1h", 93), ("5000/hour", "100/1h", 93)],
)
def test_amounts_that_operators_have_changed_are_shown(
    url: str, file: Path, slidegate: Command, rules: str, changed: str, limit: str, remaining: int
) -> None:
    """A change that the rules of the workers cannot take is not in force there, and is not shown here."""
    use_store(url, used_by_a_client)
    assert slidegate("limits", "set", "api", changed, "--for", "1h", "--store", url).code == 0
    given = ("--rules", str(file)) if rules == "file" else ("--rule", "api=100/hour")
    (state,) = slidegate("explain", "203.0.113.7", *given, "--store", url, "--json").rows
    (window,) = state["windows"]
    assert (window["limit"], window["used"], window["remaining"]) == (limit, 7, remaining)


def test_while_all_workers_are_off_nobody_is_refused(url: str, slidegate: Command) -> None:
    slidegate("bans", "add", "203.0.113.7", "--for", "1h", "--store", url)
    assert slidegate("limits", "off", "--for", "10m", "--store", url).code == 0
    words = ("explain", "203.0.113.7", "--store", url)
    assert slidegate(*words).out.startswith("203.0.113.7 is not refused: all workers are off until 20")
    (state,) = slidegate(*words, "--json").rows
    assert (state["refused"], bool(state["ban"])) == (False, True)
    slidegate("limits", "restore", "*", "--store", url)
    assert slidegate(*words).out.startswith("203.0.113.7 is refused")


def test_keyed_value_is_explained_by_its_value_or_its_digest(url: str, slidegate: Command) -> None:
    use_store(url, used_by_a_client)
    words = ("--rule", "api=100/hour", "--store", url, "--json")
    (by_value,) = slidegate("explain", "header:X-API-Key", "--value", "k123", *words).rows
    (by_digest,) = slidegate("explain", by_value["key"], *words).rows
    assert by_value["windows"][0]["used"] == by_digest["windows"][0]["used"] == 1
    assert "k123" not in by_value["key"]
    process = start("explain", "header:X-API-Key", "--value", "-", *words, stdin=-1)
    out, _ = process.communicate(b"k123\n", timeout=60)
    assert by_value["key"] in out.decode(), "the value was read from stdin"


@pytest.mark.parametrize("key", ["header:X-API-Key", "cookie:device", "query:token", "HEADER:X-API-Key"])
def test_keyed_value_without_its_value_is_an_error(key: str, lmdb_url: str, slidegate: Command) -> None:
    ended = slidegate("explain", key, "--rule", "api=100/hour", "--store", lmdb_url)
    assert (ended.code, ended.out) == (2, "")
    assert f"'{key}' names no client without its value" in ended.error
    assert slidegate("explain", "user:42", "--value", "k123", "--store", lmdb_url).code == 2


def test_recent_requests_and_refusals_of_workers_with_statistics_are_shown(url: str, slidegate: Command) -> None:
    async def serve(limiter: Limiter) -> None:
        statistics = Statistics.of(limiter)
        middleware = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("/items", "5/hour", name="api")])
        assert await statuses(middleware, 12, "/items") == [200] * 5 + [429] * 7
        await statistics.publish()
        if url.startswith("redis"):  # a process may not open an LMDB file twice
            await asyncio.to_thread(look)

    def look() -> None:
        before = slidegate("explain", "203.0.113.9", "--store", url, "--json").rows
        (state,) = slidegate("explain", "203.0.113.9", "--store", url, "--json").rows
        assert (state["requests_5m"], state["refused_5m"]) == (12, 7)
        assert len(state["refusals"]) == 5
        assert all("api" in refusal["message"] for refusal in state["refusals"])
        assert state["refusals"] == before[0]["refusals"]
        assert "\nlast 5 minutes: 12 requests, 7 refused\n" in slidegate("explain", "203.0.113.9", "--store", url).out

    use_store(url, serve)
    look()


# -- limits ------------------------------------------------------------------------------------------------------------

EXPECTED = """\
5/minute; 50/hour
  5 per 1m: exact; the time of each unit is stored
  50 per 1h: exact; the time of each unit is stored

Maximum for one client in any span of:
    1s:              5
    1m:              5
    1h:             50
    1d:          1,200
Largest burst: 5, then retry after 1 min.
Steady rate that is never refused: one request every 1 min 12 s.
"""


def test_limits_are_explained_to_people_and_programs(slidegate: Command) -> None:
    assert slidegate("explain", "5/minute; 50/hour") == (0, EXPECTED, "")
    (facts,) = slidegate("explain", "5/minute; 50/hour", "--json").rows
    assert facts["most"] == {"1s": 5, "1m": 5, "1h": 50, "1d": 1_200}
    assert (facts["limits"], facts["burst"]) == (["5/1m", "50/1h"], 5)
    assert (facts["retry_after_burst_s"], facts["steady_every_s"]) == ([60.0, 60.0], 72.0)


def test_both_ends_of_the_wait_are_given_for_slices(slidegate: Command) -> None:
    text = slidegate("explain", "100/minute").out
    assert "counted in 64 slices of 937.5 ms and the current one" in text
    assert "retry after 1 min 1 s." in text
    assert "retry after 1 d 1 min to 1 d 23 min." in slidegate("explain", "100/day").out


def test_each_rule_of_a_file_is_explained_and_its_store_is_not_opened(tmp_path: Path, slidegate: Command) -> None:
    file, store = tmp_path / "slidegate.toml", tmp_path / "store"
    file.write_text(
        f"""
store = "lmdb://{store}"
default_limits = "7/minute"
[[rules]]
path = "/health"
exempt = true
[[rules]]
path = "/login"
limits = ["5/minute", {{ quota = "100/day", zone = "UTC" }}]
name = "login"
concurrency = 3
""",
        "utf-8",
    )
    found: dict[str, Any] = {facts["title"]: facts for facts in slidegate("explain", str(file), "--json").rows}
    assert list(found) == ["rule login", "each route (default_limits)"]
    assert found["rule login"]["limits"] == ["5/1m"]
    assert len(found["rule login"]["others"]) == 2
    assert not store.exists()
    assert slidegate("explain", str(file)).out.count("not included in the bounds below") == 2


@pytest.mark.parametrize("subject", ["203.0.113.0/24", "2001:db8::/48", "user:42", "10.0.0.7", "asn:64500"])
def test_addresses_networks_and_keys_are_no_limits(subject: str, lmdb_url: str, slidegate: Command) -> None:
    (state,) = slidegate("explain", subject, "--store", lmdb_url, "--json").rows
    assert state["key"] == subject


@pytest.mark.parametrize("subject", ["5/minit", "5 per fortnight", "5/24", "5/minute; 6", "", "0/s"])
def test_mistyped_limits_are_no_key(subject: str, lmdb_url: str, slidegate: Command) -> None:
    ended = slidegate("explain", subject, "--store", lmdb_url)
    assert ended.code == 2
    assert "limits: " in ended.error
