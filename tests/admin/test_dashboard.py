"""The dashboard: all open pages share a snapshot; the page is small, complete, and loads nothing from other hosts."""

from __future__ import annotations

import re
from threading import get_ident
from typing import Any

import anyio
import pytest
import tree_sitter_javascript
from hypothesis import given
from hypothesis import strategies as st
from tree_sitter import Language, Parser

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.admin.dashboard import LINE_POINTS, thinned
from slidegate.admin.parameters import WINDOWS
from slidegate.dashboard import Dashboard
from slidegate.stats.report import RecentStats
from slidegate.testing import FakeClock

from ..asgi import hello, statuses
from .dashboard_client import TOKEN, Browser, Site, said, with_token


async def snapshot(browser: Browser, query: str = "", **headers: str) -> Any:
    answer = await browser.send("GET", "/api/now" + query, **headers)
    assert answer.status == 200
    return said(answer)


async def test_many_who_look_at_once_get_one_snapshot(site: Site) -> None:
    browser = Browser(site.app)
    await site.limiter.hit("<script>", "5/minute")
    seen: list[Any] = []

    async def look() -> None:
        site.clock.advance(us=1)
        seen.append(await snapshot(browser))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(look)
    assert seen == [seen[0]] * 20
    assert seen[0]["clients"][0]["key"] == "<script>"


async def test_rules_lines_and_history_of_a_snapshot_agree(site: Site) -> None:
    rules = [Rule(f"/{number}", "5/minute", name=f"rule {number}") for number in range(9)]
    app = RateLimitMiddleware(hello, limiter=site.limiter, rules=rules)
    for number in range(9):
        await statuses(app, number + 1, f"/{number}")
    found = await snapshot(Browser(site.app))
    rows = found["stats"]["rules"]
    assert set(found["lines"]["rules"]) == set(rows) == {rule.label for rule in rules}
    assert sum(found["history"]["passed"]) == sum(row["passed"] for row in rows.values()) == 35


async def test_a_snapshot_is_made_in_a_thread(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    stats = RecentStats.stats

    def noted(*given: Any) -> Any:
        threads.append(get_ident())
        return stats(*given)

    monkeypatch.setattr(RecentStats, "stats", noted)
    await snapshot(Browser(site.app))
    assert len(threads) == 1
    assert get_ident() not in threads


@pytest.mark.parametrize("window", WINDOWS)
async def test_a_snapshot_is_good_for_two_seconds_or_ten(window: str, clock: FakeClock) -> None:
    site = Site(clock)
    browser = Browser(site.app)
    good_us = 2_000_000 if window in ("1m", "5m", "10m") else 10_000_000
    made = await snapshot(browser, f"?window={window}")
    clock.advance(us=good_us - 1)
    assert await snapshot(browser, f"?window={window}") == made
    clock.advance(us=1)
    assert (await snapshot(browser, f"?window={window}"))["at"] == clock.now_us / 1_000_000


async def test_without_a_store_the_snapshot_says_so_and_shows_no_address(closed_port: int) -> None:
    async with Limiter.from_url(f"redis://user:s3cret@127.0.0.1:{closed_port}/0", deadline="5s") as limiter:
        answer = await with_token(Dashboard(limiter, token=TOKEN), "GET", "/api/now")
    found = said(answer)
    assert (found["stats"], found["problem"]) == (None, "The store does not answer, so there are no new stats.")
    assert str(closed_port) not in answer.body.decode()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=400))
def test_a_small_line_ends_with_the_last_step_that_is_complete(counts: list[int]) -> None:
    line = thinned(counts)
    assert len(line) <= LINE_POINTS
    together = -(-(len(counts) - 1) // LINE_POINTS) or 1
    told = len(line) * together
    assert len(counts) - 1 - told in range(together)
    assert sum(line) == sum(counts[-told - 1 : -1])


LOADED = re.compile(r"""(?:src|href)="(?!#)([^"]+)"|from "\./([\w.]+)\"""")
MAX_BYTES = 100 * 1_024


async def loaded(site: Site) -> dict[str, str]:
    """Return path -> text of the page and of all files that it and its scripts load."""
    texts: dict[str, str] = {}
    wanted = ["/"]
    while wanted:
        path = wanted.pop()
        answer = await Browser(site.app).send("GET", path)
        assert answer.status == 200, path
        texts[path] = answer.body.decode()
        named = [f"/{name or 'static/' + module}" for name, module in LOADED.findall(texts[path])]
        wanted += [name for name in named if name not in texts and name not in wanted]
    return texts


async def test_the_page_is_small_asks_no_other_place_and_shows_no_version(site: Site) -> None:
    texts = await loaded(site)
    assert sum(len(text) for text in texts.values()) <= MAX_BYTES
    for path, text in texts.items():
        assert set(re.findall(r"""https?://[^\s"'`)]+""", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"""(?:src|href|from|import)\s*=?\s*["'(]//""", text)
        assert not re.search(r"\b\d+\.\d+\.\d+\b", re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "", text))
        assert max(map(len, text.splitlines())) <= 120, path


async def test_every_script_of_the_page_can_be_parsed(site: Site) -> None:
    parser = Parser(Language(tree_sitter_javascript.language()))
    scripts = {path: text for path, text in (await loaded(site)).items() if path.endswith(".js")}
    assert len(scripts) >= 10
    broken = [path for path, text in scripts.items() if parser.parse(text.encode()).root_node.has_error]
    assert broken == []
    assert parser.parse(b"const = 1;").root_node.has_error
