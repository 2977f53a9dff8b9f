"""Pages: charts, sizes, the policy that browsers enforce, texts of clients as text, secrets, and numbers."""

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import tree_sitter_javascript
from tree_sitter import Language, Parser

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.core import Ban
from slidegate.core.bans.rows import to_rows
from slidegate.dashboard import Dashboard
from slidegate.ops.statistics import Statistics

from ...asgi import call, page
from .site import TOKEN, VIEWS, Page, Site, basic


async def test_page_of_a_view_is_small_and_asks_no_other_place(site: Site) -> None:
    for number in range(30):
        await site.visit("/articles/a", times=number % 12, client=f"198.51.100.{number}")
    files = {"static/page.js": 5_000, "static/style.css": 14_000, "static/icon.svg": 1_000}
    for name, most in [*files.items(), *((view, 30_000) for view in VIEWS)]:
        body = (await site.get(name)).body
        assert len(body) <= most, name
        text = body.decode()
        assert {*re.findall(r"https?://[^\s\"'`)<]+", text)} <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"""(?:src|href|from|import)\s*=?\s*["'(]//""", text)
    script = (await site.get("static/page.js")).body
    assert not Parser(Language(tree_sitter_javascript.language())).parse(script).root_node.has_error


@pytest.fixture
def reads(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read from the statistics, while others come in between."""
    reads, statistics = list[str](), Statistics.of(site.limiter)

    async def noted(name: str, *given: Any, **more: Any) -> Any:
        reads.append(name)
        await anyio.lowlevel.checkpoint()
        return await getattr(Statistics, name)(statistics, *given, **more)

    for name in ("read", "clients", "events"):
        monkeypatch.setattr(statistics, name, partial(noted, name))
    return reads


async def test_viewers_share_what_is_read_from_the_store(site: Site, reads: list[str]) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(20):
            for view in ("", "clients", "bans"):
                group.start_soon(site.page, view)
    assert sorted(reads) == ["clients", "events", "read"]


@pytest.mark.parametrize(("window", "interval_us"), [("5m", 2_000_000), ("1h", 10_000_000)])
async def test_a_snapshot_is_shared_for_two_seconds_or_ten(
    window: str, interval_us: int, site: Site, reads: list[str]
) -> None:
    for pause_us, times in ((0, 1), (0, 1), (interval_us - 1, 1), (1, 2)):
        site.clock.advance(us=pause_us)
        await site.page(f"?window={window}")
        assert (await site.get(f"api/statistics?window={window}")).status == 200
        assert reads.count("read") == times


async def test_a_change_is_shown_though_another_viewer_still_reads_what_was_before_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, changed = anyio.Event(), anyio.Event()

    async def bans() -> AsyncIterator[Ban]:
        for ban in [one async for one in Limiter.bans(site.limiter)]:
            yield ban
        read.set()
        await changed.wait()

    monkeypatch.setattr(site.limiter, "bans", bans)
    async with anyio.create_task_group() as group:
        group.start_soon(site.page, "bans")
        await read.wait()
        assert (await site.submit("bans", do="ban", value="198.51.100.1", duration="1h")).status == 303
        changed.set()
    assert "198.51.100.1 0" in (await site.page("bans")).names("tr", "data-key")


async def test_a_refused_change_of_a_client_shows_it_again_and_a_refused_search_shows_nobody(site: Site) -> None:
    answer = await site.submit("clients", do="ban", value="198.51.100.1", duration="soon")
    assert (answer.status, Page(answer).lines.count("198.51.100.1")) == (400, 1)
    answer = await site.submit("clients", do="find", value="198.51.100.O")
    assert (answer.status, Page(answer).lines.count("198.51.100.O")) == (400, 0)


async def test_dashboard_without_a_middleware_shows_empty_views(site: Site) -> None:
    dashboard = Dashboard(Limiter(), token=TOKEN)
    for view in VIEWS:
        assert (await call(dashboard, f"/{view}", headers={"authorization": basic(TOKEN)})).status == 200


async def test_limits_of_one_name_and_bans_of_one_key_are_rows_of_their_own(site: Site) -> None:
    _inner = RateLimitMiddleware(page, limiter=site.limiter, rules=[Rule("*", "9/hour", name="all")])
    bans = [Ban("203.0.113.0/24", "", by, level, 0, None) for level, by in enumerate(("ann", "abuse"))]
    await site.limiter.import_bans(map(json.dumps, to_rows(bans)))
    rows = {view: (await site.page(view)).names("tr", "data-key") for view in ("bans", "configuration")}
    assert len([key for key in rows["bans"] if key.startswith("203.0.113.0/24")]) == 2
    assert len([key for key in rows["configuration"] if key.startswith("all")]) == 2
