"""The views as a browser without scripts sees them: what they show, their forms, and texts of clients as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.lowlevel
import pytest
import tree_sitter_javascript
from tree_sitter import Language, Parser

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, header
from slidegate.dashboard import Dashboard
from slidegate.ops.dashboard.page import count, ms, rate, share, span, store_name
from slidegate.ops.statistics import Statistics
from slidegate.stores.lmdb.store import LmdbStore

from .site import HOSTILE, TOKEN, VIEWS, Page, Site, article

SECRET = "k123-secret-value"
NOTHING = "\u2013"
"""What is shown for no value."""


async def after(site: Site, path: str = "") -> Page:
    """Return a view once the shared values are made again."""
    await Statistics.of(site.limiter).publish()
    site.clock.advance("10s")
    return await site.page(path)


# -- what is shown -----------------------------------------------------------------------------------------------------


async def test_now_shows_totals_charts_and_the_clients_nearest_to_a_limit(site: Site) -> None:
    await site.visit(times=23)
    await site.visit("/articles/a", times=5, client="198.51.100.1")
    await site.visit(client="192.0.2.200")
    page = await after(site)
    text = " ".join(page.text.split())
    for part in (
        "Requests 29",
        "Passed 25",
        "Limited 3",
        "By bans 0 1 by lists",
        "Median",
        "1 worker, latest counts",
    ):
        assert part in text
    assert page.row("203.0.113.9") == ["all 20/1m", "20 / 20", "23", "3"]
    assert page.row("198.51.100.1")[:2] == ["all 20/1m", "5 / 20"]
    assert page.row("all")[1:4] == ["25", "3", "10.7 %"]
    assert page.row("tighter")[1:3] == [NOTHING, "21 in shadow"]
    assert page.row("GET")[1] == "20"
    assert [name for name in page.names("svg", "class") if name == "trend"] != []
    assert page.names("svg", "aria-label") == ["Requests per second", "Time to the last byte, in ms"]
    assert re.search(r"\d\d:\d\d:\d\d: passed 5, limited 0\.6, by lists 0\.2", text), "the titles are tooltips"


async def test_refusals_are_labelled_by_their_rules_and_not_by_a_missing_route(site: Site) -> None:
    await site.visit("/articles/a", times=60)
    page = await after(site)
    assert page.row("all")[2] == "40"
    assert "(no route)" not in page.text
    client = await site.page("clients?key=203.0.113.9")
    assert client.rows[1][1:] == ["limited", "all", "429", "40"]


async def test_two_limits_of_one_rule_have_two_labels(site: Site) -> None:
    await site.visit("/api/a", times=2, x_api_key="k")
    key = site.limiter.key_for(header("X-API-Key").of("k"))
    page = await site.page(f"clients?key={key.replace('#', '%23')}")
    assert page.names("section", "aria-label")[1:3] == ["api 5/1m", "api 50/1h"]
    names = [row[0] for row in (await site.page("configuration")).rows if row]
    assert {"api_60", "api_3600"} <= {*names}


async def test_client_is_shown_with_bars_of_what_is_spent_and_when_it_comes_back(site: Site) -> None:
    await site.visit(times=20)
    site.clock.advance("12s")
    page = await site.page("clients?key=203.0.113.9")
    assert "20 / 20" in page.text
    assert "0 left; refused for another 48 s; all back in 48 s" in page.text
    assert "would be refused" in " ".join(page.text.split()), "the shadow rule"
    bars = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("class") == "slices"]
    assert [bar["aria-label"] for bar in bars] == ["Units spent of 20/1m, by time", "Units spent of 2/1m, by time"]
    assert "12 s ago: 20" in page.text


async def test_busiest_clients_come_in_the_order_that_is_chosen(site: Site) -> None:
    for client, times in (("198.51.100.1", 30), ("198.51.100.2", 25), ("198.51.100.3", 4)):
        await site.visit(times=times, client=client)
    await site.visit("/api/a", times=9, client="198.51.100.4", x_api_key="k")
    page = await site.page("clients")
    assert [row[1] for row in page.rows[1:]] == ["30", "25", "9", "9", "4"]
    assert page.row("198.51.100.1") == ["30", "10", "all 20/1m", NOTHING]
    assert [row[2] for row in (await site.page("clients?sort=refused")).rows[1:]] == ["10", "5", "4", "4"]


@pytest.mark.parametrize(
    ("client", "banned"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("198.51.100.1", "198.51.100.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1:2::3"),
        ("2001:db8:1:2::3", "2001:db8::/32"),
    ],
)
async def test_client_is_shown_as_banned_whatever_ban_refuses_it(client: str, banned: str, site: Site) -> None:
    await site.visit(times=3, client=client)
    assert "Banned" not in (await site.page("clients")).text
    assert (await site.submit("bans", do="ban", value=banned, duration="1h")).status == 303
    assert await site.visit(times=2, client=client) == [403, 403]
    page = await site.page("clients")
    assert page.rows[1][1:] == ["5", "2", page.rows[1][3], "Banned"]
    shown = await site.page(page.names("a", "href")[-1])
    assert f"{site.limiter.key_for(banned)}, until" in " ".join(shown.text.split()).replace(" ,", ",")
    assert (await site.submit("clients", do="unban", key=banned)).status == 303
    assert "Banned" not in (await site.page("clients")).text


async def test_bans_are_searched_and_say_who_banned(site: Site) -> None:
    for key, reason in (("user:1", "scrapes"), ("user:2", "floods"), ("198.51.100.0/24", "floods")):
        await site.limiter.ban(key, "1h", reason=reason, by="bob")
    await site.limiter.ban("user:3", "permanent")
    page = await site.page("bans")
    assert page.rows[0][:3] == ["Client", "Reason", "By"]
    assert page.row("user:1")[:2] == ["scrapes", "bob"]
    assert page.row("user:3")[4] == "it is lifted"
    found = await site.page("bans?q=FLOOD")
    assert [row[0] for row in found.rows[1:3]] == ["198.51.100.0/24", "user:2"]
    assert "2 of 4" in found.text
    assert "No ban matches." in (await site.page("bans?q=nothing")).text
    assert "banned" in " ".join(cell for row in page.rows for cell in row), "the events"


async def test_shadow_shows_what_rules_and_policies_would_have_refused() -> None:
    site = Site(middleware={"bans": BanPolicy("3/10m", "1h", name="harsh", shadow=True)})
    await site.visit(times=24, client="198.51.100.7")
    page = await site.page("shadow")
    assert page.row("tighter") == ["2/1m", "20", "18", "90 %"]
    assert page.row("198.51.100.7") == ["tighter", "18"]
    assert page.row("harsh") == ["3/10m", "1 h"]
    assert "198.51.100.7" in page.rows[-1][1]


async def test_configuration_shows_rules_policies_lists_and_findings(tmp_path: Path) -> None:
    (tmp_path / "bad.netset").write_text("203.0.113.128/25\n198.51.100.0/24\n")
    rules = [
        Rule(["/a", "/b"], "5/minute; 50/hour", methods=["POST"], name="forms", wait="1s"),
        Rule("/plans", lambda request: "7/minute", name="plans"),
        Rule("/old", block=True, status=410, name="old"),
        Rule("/free", exempt=True, name="free"),
    ]
    site = Site(middleware={"rules": rules, "blocklist": Networks.from_file(tmp_path / "bad.netset")})
    (tmp_path / "slidegate.toml").write_text('[[rules]]\npath = "/from/file"\nlimits = "4/s"\nname = "file"\n')
    outer = RateLimitMiddleware.from_file(article, tmp_path / "slidegate.toml", limiter=site.limiter)
    await site.visit()
    page = await site.page("configuration")
    rows = {row[0]: row[1:] for row in page.rows if row}
    assert rows["forms"] == ["/a /b POST", "5/1m; 50/1h", "address", "limits, lets requests wait"]
    assert rows["plans"][1] == "of a function"
    assert rows["old"][3] == "blocks"
    assert rows["free"][3] == "exempts"
    assert rows["abuse"] == ["900/10m", "1 h", "4", "7 d", "bans"]
    assert rows["bad"][:2] == ["blocks", "2"]
    assert rows["file"][:2] == ["/from/file", "4/1s"]
    assert "slidegate.toml" in page.text
    assert "SG123" in page.text, "no route meets the paths"
    del outer


def test_store_is_named_in_words_and_never_by_its_repr(tmp_path: Path) -> None:
    limiter = Limiter.from_url("redis://ann:s3cret@127.0.0.1:1/0?prefix=shop")
    assert store_name(limiter.store) == "Redis, prefix shop"
    assert store_name(MemoryStore()) == "Memory of this process"
    store = LmdbStore(tmp_path / "x")
    assert store_name(store) == f"LMDB, {tmp_path / 'x'}"
    store.close()

    class Own:
        def __repr__(self) -> str:
            return "<Own 'redis://ann:s3cret@host'>"

    assert store_name(Own()) == "Own"


async def test_page_of_a_view_is_small_and_asks_no_other_place(site: Site) -> None:
    for number in range(30):
        await site.visit("/articles/a", times=number % 12, client=f"198.51.100.{number}")
    for view in VIEWS:
        answer = await site.get(view)
        assert len(answer.body) <= 30_000, view
    texts = {name: (await site.get(f"static/{name}")).body.decode() for name in ("page.js", "style.css", "icon.svg")}
    assert len(texts["page.js"]) <= 5_000
    assert len(texts["style.css"]) <= 14_000
    pages = [(await site.get(view)).body.decode() for view in VIEWS]
    for text in [*texts.values(), *pages]:
        assert {*re.findall(r"https?://[^\s\"'`)<]+", text)} <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"""(?:src|href|from|import)\s*=?\s*["'(]//""", text)
    parsed = Parser(Language(tree_sitter_javascript.language())).parse(texts["page.js"].encode())
    assert not parsed.root_node.has_error


async def test_no_view_has_inline_styles_or_scripts_which_the_policy_forbids(site: Site) -> None:
    await site.visit(times=30)
    await site.limiter.ban("203.0.113.9", "1h")
    for view in (*VIEWS, "clients?key=203.0.113.9", "nothing"):
        page = Page.of(await site.get(view))
        assert [tag for tag, attrs in page.tags for name in attrs if name == "style" or name.startswith("on")] == []
        assert "style" not in [tag for tag, _ in page.tags]
        assert [attrs for tag, attrs in page.tags if tag == "script"] == [{"src": "static/page.js"}] * (
            view != "nothing"
        )


async def test_times_are_in_utc_for_readers_and_for_the_script(site: Site) -> None:
    await site.limiter.ban("user:1", "1h")
    page = await site.page("bans")
    assert page.names("time", "datetime")[:2] == ["2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z"]
    assert page.row("user:1")[3:5] == ["2027-01-15 08:00:00", "2027-01-15 09:00:00"]


async def test_viewers_share_what_is_read_from_the_store(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    statistics = Statistics.of(site.limiter)
    for name in ("read", "clients", "events"):
        original = getattr(statistics, name)

        async def noted(*given: Any, name: str = name, original: Any = original, **more: Any) -> Any:
            reads.append(name)
            await anyio.lowlevel.checkpoint()  # others come in between
            return await original(*given, **more)

        monkeypatch.setattr(statistics, name, noted)
    async with anyio.create_task_group() as group:
        for _ in range(20):
            for view in ("", "clients", "bans"):
                group.start_soon(site.page, view)
    assert sorted(reads) == ["clients", "events", "read"]


# -- text of clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
async def test_texts_of_clients_are_shown_as_text_in_every_view(text: str, site: Site) -> None:
    await site.limiter.hit(text, "5/minute", rule="all")
    await site.limiter.ban(text, "1h", reason=text, by=text)
    await site.visit(f"/{text}", times=25)
    site.clock.advance("10s")
    plain = {view: len((await site.page(view)).tags) for view in VIEWS}
    for view in [*VIEWS, f"clients?key={quote(text, safe='')}"]:
        answer = await site.get(view)
        assert answer.status == 200
        page = Page.of(answer)
        assert [tag for tag, _ in page.tags if tag in ("img", "iframe", "object")] == []
        assert len([tag for tag, _ in page.tags if tag == "script"]) == 1
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069]", page.text)
        assert "49" not in page.names("a", "href")
        if view in plain:
            assert len(page.tags) == plain[view]
    wrong = await site.submit("bans", do="ban", kind="", value=text, duration=text, reason=text)
    assert wrong.status == 400
    assert [tag for tag, _ in Page.of(wrong).tags if tag in ("img", "iframe")] == []


# -- forms -------------------------------------------------------------------------------------------------------------


async def test_client_is_banned_and_its_ban_lifted_by_forms(site: Site) -> None:
    answer = await site.submit("bans", do="ban", kind="", name="", value="203.0.113.9", duration="1h", reason="floods")
    assert (answer.status, answer.headers["location"]) == (303, "./bans?done=ban")
    assert await site.visit() == [403]
    page = await site.page("bans?done=ban")
    assert "The ban is in force." in page.text
    assert page.row("203.0.113.9")[:2] == ["floods", "ann"]
    answer = await site.submit("bans", do="unban", key="203.0.113.9")
    assert (answer.status, answer.headers["location"]) == (303, "./bans?done=unban")
    assert await site.visit() == [200]


async def test_client_is_found_and_banned_by_the_value_of_its_header_which_is_shown_nowhere(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await site.visit("/api/a", times=3, x_api_key=SECRET)
    found = await site.submit("clients", do="find", kind="header", name="X-API-Key", value=SECRET)
    where = found.headers["location"]
    assert where.startswith("./clients?key=header%3Ax-api-key%23")
    page = await site.page(where.removeprefix("./"))
    assert "3 / 5" in page.text
    key = next(
        attrs["value"] for tag, attrs in page.tags if attrs.get("name") == "value" and attrs.get("type") == "hidden"
    )
    banned = await site.submit("clients", do="ban", value=str(key), duration="1h", reason="resells")
    assert banned.headers["location"].endswith("&done=ban")
    assert await site.visit("/api/a", x_api_key=SECRET) == [403]
    direct = await site.submit("bans", do="ban", kind="cookie", name="session", value=SECRET, duration="1h")
    wrong = await site.submit("bans", do="ban", kind="header", name="X API", value=SECRET, duration="1h")
    assert (direct.status, wrong.status) == (303, 400)
    shown = [answer.body.decode() + str(answer.start) for answer in (found, banned, direct, wrong)]
    shown += [(await site.get(view)).body.decode() for view in VIEWS]
    assert not [text for text in [*shown, caplog.text] if SECRET in text]


async def test_limit_is_changed_and_restored_by_forms(site: Site) -> None:
    page = await site.page("configuration")
    amounts = [attrs for tag, attrs in page.tags if tag == "input" and "min" in attrs]
    assert [(one["min"], one["max"], one["value"]) for one in amounts][2] == ("1", "200", "20")
    answer = await site.submit("configuration", do="change", name="all", limit="3", duration="1h", reason="slow")
    assert answer.headers["location"] == "./configuration?done=change"
    assert await site.visit(times=4) == [200, 200, 200, 429]
    row = (await site.page("configuration?done=change")).row("all")
    assert row[1:4] == ["3/1m", "20/1m", "until 2027-01-15 09:00:00 by ann: slow"]
    assert (await site.submit("configuration", do="restore", name="all")).status == 303
    assert await site.visit(times=3) == [200] * 3


async def test_all_workers_are_switched_off_and_on_by_forms(site: Site) -> None:
    off = await site.submit("configuration", do="change", name="*", limit="off", duration="10m", reason="a wrong rule")
    assert off.headers["location"] == "./configuration?done=change"
    assert "All workers are off until" in (await site.page("configuration")).alerts[0]
    assert await site.visit(times=40) == [200] * 40
    assert (await site.submit("configuration", do="restore", name="*")).status == 303
    assert (await site.page("configuration")).alerts == []


@pytest.mark.parametrize(
    ("view", "form", "status", "message"),
    [
        ("bans", {"do": "ban", "kind": "", "value": "203.0.113.O", "duration": "1h"}, 400, "key: expected an address"),
        ("bans", {"do": "ban", "kind": "", "value": "", "duration": "1h"}, 400, "key: expected an address"),
        (
            "bans",
            {"do": "ban", "kind": "header", "name": "X", "value": "", "duration": "1h"},
            400,
            "header:x: expected",
        ),
        ("bans", {"do": "ban", "value": "user:1", "duration": "2 months"}, 400, "no fixed length"),
        ("bans", {"do": "ban", "value": "user:1", "duration": "1h", "reasn": "x"}, 400, "did you mean 'reason'?"),
        ("bans", {"do": "ban", "value": "192.0.2.1", "duration": "1h"}, 409, "This would ban your own address."),
        ("bans", {"do": "unban", "key": "user:9"}, 404, "has no ban and no strikes"),
        ("clients", {"do": "find", "kind": "", "value": "ann"}, 400, "key: expected an address"),
        ("clients", {"do": "find", "kind": "cookie", "name": "", "value": "x"}, 400, "cookie: expected"),
        ("configuration", {"do": "change", "name": "all", "limit": "201", "duration": "1h"}, 400, "from 1 to 200"),
        ("configuration", {"do": "change", "name": "all", "limit": "2", "duration": "31d"}, 400, "duration: expected"),
        ("configuration", {"do": "restore", "name": "all"}, 404, "not the name of a changed limit"),
    ],
)
async def test_form_that_is_refused_is_shown_again_with_the_reason_beside_it(
    view: str, form: dict[str, str], status: int, message: str, site: Site
) -> None:
    answer = await site.submit(view, **form)
    page = Page.of(answer)
    assert answer.status == status
    if form["do"] not in ("unban", "restore"):  # there, the row has gone
        assert message in " ".join(page.alerts)
    if "value" in form and not form.get("kind"):
        assert form["value"] in page.names("input", "value")
    if status == 409:
        assert page.names("input", "name").count("force") == 1
        assert (await site.submit(view, **form, force="true")).status == 303


@pytest.mark.parametrize(("view", "do"), [("bans", "nothing"), ("bans", ""), ("nowhere", "ban")])
async def test_form_that_there_is_not_changes_nothing(view: str, do: str, site: Site) -> None:
    assert (await site.submit(view, do=do, value="user:1", duration="1h")).status == 404
    assert [ban async for ban in site.limiter.bans()] == []


async def test_address_that_is_no_key_is_explained_where_a_client_is_shown(site: Site) -> None:
    page = await site.page("clients?key=" + "x" * 2_000)
    assert "key: expected an address" in page.alerts[0]
    assert (await site.get("?window=2h")).status == 400


async def test_dashboard_without_a_middleware_shows_empty_views() -> None:
    site = Site()
    site.app = Dashboard(Limiter(), token=TOKEN)
    for view in VIEWS:
        answer = await site.get(view)
        assert answer.status == 404, "not mounted at /slidegate"


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(1_234.4), "1,234"),
        (count(None), NOTHING),
        (rate(0.1234), "0.123"),
        (rate(1_234.0), "1,234"),
        (share(1, 8), "12.5 %"),
        (share(0, 0), NOTHING),
        (ms(0.8581), "0.858 ms"),
        (ms(1_500), "1,500 ms"),
        (ms(12_345), "12.3 s"),
        (span(0.2), "0 s"),
        (span(-5), "0 s"),
        (span(3_661), "1 h 1 min"),
        (span(90_061), "1 d 1 h"),
        (span(None), NOTHING),
    ],
)
def test_numbers_are_shown_in_units_that_people_read(shown: str, expected: str) -> None:
    assert shown == expected
