"""Pages: charts, sizes, the policy that browsers enforce, texts of clients as text, secrets, and numbers."""

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import anyio
import anyio.lowlevel
import pytest
import tree_sitter_javascript
from hypothesis import given
from hypothesis import strategies as st
from tree_sitter import Language, Parser

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.core import Ban
from slidegate.core.bans.rows import to_rows
from slidegate.dashboard import Dashboard
from slidegate.ops.dashboard import charts
from slidegate.ops.dashboard.page import rate
from slidegate.ops.statistics import Statistics

from ...asgi import call, hello, page, statuses
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


async def test_a_change_is_shown_though_another_viewer_still_reads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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
    _tried = RateLimitMiddleware(
        page, limiter=site.limiter, rules=[Rule("*", "9/hour", name="all", shadow=True)], name="tried"
    )
    bans = [Ban("203.0.113.0/24", "", by, level, 0, None) for level, by in enumerate(("ann", "abuse"))]
    await site.limiter.import_bans(map(json.dumps, to_rows(bans)))
    rows = {view: (await site.page(view)).names("tr", "data-key") for view in ("bans", "configuration")}
    assert len({key for key in rows["bans"] if key.startswith("203.0.113.0/24")}) == 2
    assert len({key for key in rows["configuration"] if key.startswith("all")}) == 3
    twins = [RateLimitMiddleware(hello, limiter=site.limiter, limits="9/hour") for _ in range(2)]
    assert [await statuses(twin, 1, client=("192.0.2.9", 1)) for twin in twins] == [[200], [200]]
    assert (await site.page("clients?key=192.0.2.9")).names("section", "data-key") == ["192.0.2.9"]  # no window's


# -- charts are well-formed, stay inside their place, and show the numbers that they are made of -----------------------


COUNTS = ("passed", "limited", "banned", "blocked")
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(COUNTS, st.integers(0, 10**9)),
            **dict.fromkeys(("p50_ms", "p95_ms"), st.none() | st.floats(0.001, 10**6)),
        }
    ),
    max_size=80,
)
STEP_S = st.sampled_from([5.0, 60.0, 300.0, 1_200.0])


def stats(steps: list[dict[str, Any]], step_s: float = 5.0) -> dict[str, Any]:
    return {"steps": steps, "step_s": step_s, "start_at": 1_800_000_000.0}


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.e+-]+) ([\d.e+-]+)", path)]


@given(STEPS, STEP_S)
def test_chart_of_any_numbers_is_well_formed_and_inside_its_place(steps: list[dict[str, Any]], step_s: float) -> None:
    for draw in (charts.requests, charts.times):
        chart = draw(stats(steps, step_s), rate)
        done = steps[:-1]
        tree = ET.fromstring(f"<div>{chart.drawing}</div>")
        lines = tree[1]
        wide, high = (float(one) for one in lines.attrib["viewBox"].split()[2:])
        assert wide == max(len(done), 1)
        for path in lines.iter("path"):
            for x, y in points(path.attrib["d"]):
                assert 0 <= x <= wide
                assert -0.01 <= y <= high
        titles = [title.text or "" for title in lines.iter("title")]
        assert len(titles) == len(chart.rows) == len(done)
        for title, (when, texts) in zip(titles, chart.rows, strict=True):
            legend = [f"{name} {text}" for name, text in zip(chart.names, texts, strict=True)]
            said = [one for one in legend if not one.endswith((" 0", f" {charts.NOTHING}"))]
            assert title == f"{when}: {', '.join(said) or 'none'}"
        labels = list(tree[2].iter("text"))
        assert len(labels) <= charts.MAX_TICKS
        assert "nan" not in chart.drawing


@given(STEPS.filter(lambda steps: len(steps) > 1))
def test_areas_are_stacked_in_the_order_of_the_legend(steps: list[dict[str, Any]]) -> None:
    chart = charts.requests(stats(steps), rate)
    tops: dict[str, list[float]] = {}
    for path in ET.fromstring(f"<div>{chart.drawing}</div>")[1].iter("path"):
        if path.attrib["class"].startswith("line"):
            tops[path.attrib["class"].split()[1]] = [y for _, y in points(path.attrib["d"])]
    drawn = [tops[f"s{index}"] for index in range(len(COUNTS)) if f"s{index}" in tops]
    assert {f"s{index}" for index, name in enumerate(COUNTS) if any(step[name] for step in steps[:-1])} == {*tops}
    for below, above in pairwise(drawn):
        assert all(high <= low + 0.01 for low, high in zip(below, above, strict=True))


@given(st.floats(0.001, 10**12))
def test_axis_has_round_steps_and_reaches_the_largest_value(most: float) -> None:
    step = {"p50_ms": None, "p95_ms": most}
    chart = charts.times(stats([step, step]), rate)
    ticks = [float(label.text or "") for label in ET.fromstring(f"<div>{chart.drawing}</div>")[0]]
    assert 2 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert ticks[-1] >= most * 0.99999
    assert f"{ticks[1]:.0e}"[0] in "125"


@given(st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_meter_is_amber_from_80_percent_and_red_when_nothing_is_left(amount: int, used: int) -> None:
    drawing = ET.fromstring(str(charts.meter(used, amount)))
    expected = "meter full" if used >= amount else "meter near" if used >= 0.8 * amount else "meter"
    assert drawing.attrib["class"] == expected
