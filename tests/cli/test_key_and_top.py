"""`slidegate key` and `slidegate top` with real stores."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule, header
from slidegate.admin import AdminRoutes
from slidegate.stats.statistics import recording_of

from ..asgi import hello, statuses
from .stores_at_hand import fill, hanging_ends, run, start, touch


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


async def used_by_a_client(limiter: Limiter) -> None:
    for _ in range(7):
        await limiter.hit("203.0.113.7", "100/hour", rule="api")
    await limiter.hit(_key(limiter), "100/hour", rule="api")
    await limiter.ban("203.0.113.7", "1h", reason="scan")


def _key(limiter: Limiter) -> str:
    return limiter.key_for(header("X-API-Key").of("k123"))


def test_a_key_is_shown_with_windows_and_ban(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("key", "show", "user:1", "--rule", "api=5/minute", "--store", url, "--format", "json") == 0
    found = shown(capsys)
    assert (found["ban"], found["windows"][0]["slices"]) == (None, []), "a key that nobody knows has nothing"
    fill(url, used_by_a_client)
    words = ("key", "show", "203.0.113.7", "--rule", "api=100/hour", "--store", url)
    assert run(*words, "--format", "json") == 0
    found = shown(capsys)
    (window,) = found["windows"]
    assert (window["rule"], window["used"], window["remaining"]) == ("api", 7, 93)
    assert sum(part["count"] for part in window["slices"]) == 7
    assert found["ban"]["reason"] == "scan"
    assert run(*words) == 0
    text = capsys.readouterr().out
    assert "100/1h" in text
    assert "scan" in text


def test_rules_may_stand_in_the_configuration_file(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(url, used_by_a_client)
    file = tmp_path / "slidegate.toml"
    file.write_text('[[rules]]\npath = "*"\nname = "api"\nlimits = "100/hour"\n')
    assert run("key", "show", "203.0.113.7", "--rules", str(file), "--store", url, "--format", "json") == 0
    assert [window["used"] for window in shown(capsys)["windows"] if window["rule"] == "api"] == [7]
    file.write_text("rules = 3\n")
    assert run("key", "show", "203.0.113.7", "--rules", str(file), "--store", url) == 1
    assert run("key", "show", "203.0.113.7", "--rule", "api", "--store", url) == 2
    assert run("key", "show", "203.0.113.7", "--rule", "api=lots", "--store", url) == 2
    assert run("key", "show", "api", "--value", "k", "--store", url) == 2


@pytest.mark.parametrize("rules", ["file", "words"])
@pytest.mark.parametrize(
    ("changed", "limit", "remaining"),
    [("9/hour", "9/1h", 2), ("3/hour", "3/1h", 0), ("50/minute", "100/1h", 93), ("5000/hour", "100/1h", 93)],
)
def test_the_amounts_that_operators_have_changed_are_shown(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], rules: str, changed: str, limit: str, remaining: int
) -> None:
    """What the rules of the workers cannot take is not in force there, and is not shown here."""
    fill(url, used_by_a_client)
    assert run("limits", "set", "api", changed, "--for", "1h", "--store", url) == 0
    file = tmp_path / "slidegate.toml"
    file.write_text('[[rules]]\npath = "*"\nname = "api"\nlimits = "100/hour"\n')
    given = ("--rules", str(file)) if rules == "file" else ("--rule", "api=100/hour")
    capsys.readouterr()
    assert run("key", "show", "203.0.113.7", *given, "--store", url, "--format", "json") == 0
    (window,) = shown(capsys)["windows"]
    assert (window["limit"], window["used"], window["remaining"]) == (limit, 7, remaining)


def test_the_windows_of_a_key_are_forgotten_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, used_by_a_client)
    words = ("key", "reset", "header:X-API-Key", "--value", "k123", "--store", url)
    assert run(*words) == 0
    assert run(*words) == 1
    capsys.readouterr()
    asked = ("key", "show", "203.0.113.7", "--rule", "api=100/hour", "--store", url, "--format", "json")
    assert run(*asked) == 0
    found = shown(capsys)
    assert found["windows"][0]["used"] == 7, "the other key keeps its windows"
    assert found["ban"] is not None


def test_top_shows_what_workers_have_published_and_is_no_worker(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(limiter: Limiter) -> None:
        AdminRoutes(limiter, token="only-for-this-test")  # makes the worker publish its clients
        middleware = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("/items", "5/hour", name="api")])
        assert await statuses(middleware, 12, "/items") == [200] * 5 + [429] * 7
        if url.startswith("redis"):  # one process may not open an LMDB file twice
            await recording_of(limiter).publisher.publish()
            await asyncio.to_thread(while_it_serves)

    def while_it_serves() -> None:
        assert run("top", "--store", url, "--window", "5m", "--format", "json") == 0
        found = shown(capsys)
        assert (found["total"]["passed"], found["total"]["refused"]) == (5, 7)
        assert list(found["rules"]) == ["api"]
        assert len(found["workers"]) == 1
        assert found["clients"] == [{"client": "203.0.113.9", "requests": 12, "refused": 7}]
        assert run("top", "--once", "--store", url) == 0
        own = rf"statistics of 1 worker: \S+:{os.getpid()} \(\d+ s old\)"
        assert re.match(own, capsys.readouterr().out)
        assert run("key", "show", "203.0.113.9", "--store", url) == 0
        assert re.search(rf"^last 300 s: 12 requests, 7 refused; {own}$", capsys.readouterr().out, re.MULTILINE)

    fill(url, serve)
    assert run("top", "--once", "--store", url, "--window", "3 days") == 2
    capsys.readouterr()
    assert run("top", "--once", "--store", url, "--window", "5m") == 0
    text = capsys.readouterr().out
    assert text.startswith("no worker publishes statistics: add slidegate.stats.Statistics(limiter) or a dashboard")
    assert re.search(r"^api +\S+ +5 +7 ", text, re.MULTILINE)


def test_nothing_is_said_of_requests_before_a_worker_has_published(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(url, touch)
    assert run("top", "--once", "--store", url) == 0
    assert re.fullmatch("no worker publishes statistics: .* after five seconds\n", capsys.readouterr().out)
    assert run("key", "show", "203.0.113.7", "--store", url) == 0
    nothing = "key: 203.0.113.7\nban: none\nno worker publishes its clients: .* after five seconds\n"
    assert re.fullmatch(nothing, capsys.readouterr().out)


def test_top_is_written_anew_on_a_terminal_until_ctrl_c(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)
    ours, theirs = pty.openpty()
    process = start("top", "--every", "0.2", "--store", url, stdout=theirs)
    os.close(theirs)
    shown = b""
    with hanging_ends(process), open(ours, "rb", buffering=0) as terminal:
        while shown.count(b"Press Ctrl-C to stop") < 2:
            shown += terminal.read(1_024)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert shown.count(b"\x1b[2J") >= 2, "the terminal is cleared first"
