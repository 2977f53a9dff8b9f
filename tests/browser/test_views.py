"""The dashboard in a browser: accessible, refreshed without disturbing its reader, and usable without scripts.

Its pages request no other host and log no error.
"""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Route, expect, sync_playwright

from ..redis_servers import AT_REDIS, until
from ..workers import PATIENCE_S, ROOT
from .chromium import MISSING, PROGRAM, arguments
from .site import AMOUNT, TOKEN, Site, served

pytestmark = [pytest.mark.all, pytest.mark.skipif(PROGRAM is None, reason=MISSING)]
PATIENCE_MS = PATIENCE_S * 1_000
expect.set_options(timeout=PATIENCE_MS)
VIEWS = {
    "": "Now",
    "clients?key=203.0.113.7": "Clients",
    "bans": "Bans",
    "configuration": "Configuration",
    "?rule=everybody": "Now",
    "?route=GET /": "Now",
}
CLIPPED = """() => [...document.querySelectorAll("main *, header *")]
    .filter((element) => !element.closest("svg, .scroll, .unseen, .tabs") && element.checkVisibility())
    .filter((element) => !element.querySelector(".pop[open]") && !element.matches(".pop"))
    .filter((element) => getComputedStyle(element).display !== "inline")
    .filter((element) => element.scrollWidth > element.clientWidth + 1)
    .map((element) => `${element.localName}.${element.className}: ${element.textContent.slice(0, 60)}`)"""

BROKEN = """() => {
    const broken = [];
    for (const cell of document.querySelectorAll("main :is(td, th)")) {
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const text = texts.currentNode;
            for (const word of text.data.matchAll(/\\S+/g)) {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
                if (word[0].length <= 16 && lines.size > 1) broken.push(word[0]);
            }
        }
    }
    return broken;
}"""
"""The words of tables, but long ones, that are broken over two lines."""

NARROW = """() => [...document.querySelectorAll(".pop[open] select")].filter((choice) => {
    const width = choice.offsetWidth;
    choice.style.width = "max-content";
    const wanted = choice.offsetWidth;
    choice.style.width = "";
    return width < wanted;
}).map((choice) => choice.name)"""


# Playwright's event loop occupies its thread, in which no other test could run one.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=arguments(), timeout=PATIENCE_MS)
        yield browser
        browser.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def opened(chromium: Browser) -> Iterator[OpenPage]:
    """Opens pages: ``opened(site, token, "bans", color_scheme="dark")``."""
    contexts, wrong = [], []

    def open_page(site: Site, token: str | None, view: str = "", expected: str = "", **options: Any) -> Page:
        def note(message: ConsoleMessage) -> None:
            # Chromium logs each error response, and some tests provoke them.
            meant = expected and expected in message.text
            if message.type in {"error", "warning"} and not meant:
                wrong.append(f"{message.type}: {message.text} ({message.location['url']})")

        options = {"viewport": {"width": 1280, "height": 900}, **options}
        if token is not None:
            options["http_credentials"] = {"username": "ann", "password": token}
        context = chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda one: one.url.startswith((site.url, "data:", "blob:")) or wrong.append(one.url))
        page.goto((site.url if view.startswith("/") else site.dashboard) + view)
        if token is not None and options.get("java_script_enabled", True) and "done=" not in view:
            expect(page.locator("#state")).to_have_text("Live")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A site with traffic of some clients, and texts that are long or would be scripts."""
    with served() as (site,):
        site.flood("203.0.113.7", 40)
        site.flood("203.0.113.7", 2, "/reports", **{"X-API-Key": "of a refused client"})
        site.flood("198.51.100.23", 15, "/reports", **{"X-API-Key": "<script>alert(1)</script>"})
        site.flood("198.51.100.24", 1, "/", **{"X-API-Key": "k" * 60_000})
        many = "a reason of many words, which says all that an operator knows of these clients"
        put(site, "bans", key="198.51.100.0/28", reason=many)
        scripts = "</td><script>alert(1)</script>\u202e" + "r" * 100
        put(site, "bans", key="user:" + "w" * 59, reason=scripts)  # no rule reads it
        put(site, "limits", name="reports", limit="300/10m", reason="<b>imports</b>")
        yield site


def put(site: Site, what: str, **change: str) -> None:
    """Ban a client or change a limit, like a script."""
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    method = {"bans": "POST", "limits": "PUT"}[what]
    done = httpx.request(method, f"{site.dashboard}api/{what}", headers=bearer, json={"duration": "1h", **change})
    assert done.status_code == 200, done.text


def tab(page: Page, title: str) -> Locator:
    """Return the link to a view, which may have a number beside it."""
    return page.get_by_role("navigation", name="Views").get_by_role("link", name=re.compile(f"^{title}"))


def violations(page: Page, part: str | None = None) -> list[str]:
    """Return the violations that axe finds in a page, or in a part of it, with their elements."""
    response = Axe().run(page, context=part).response
    return [f"{found['id']}: {[node['target'] for node in found['nodes']]}" for found in response["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_no_text_is_clipped_on_desk_or_phone(scheme: str, site: Site, opened: OpenPage) -> None:
    found: dict[str, list[str]] = {}
    for size in ({"width": 1280, "height": 900}, {"width": 375, "height": 812}):
        for view, title in VIEWS.items():
            page = opened(site, TOKEN, view, color_scheme=scheme, viewport=size)
            expect(tab(page, title)).to_have_attribute("aria-current", "page")
            name = f"{view} {size['width']}"
            found[name] = violations(page) + page.evaluate(CLIPPED)
            assert size["width"] > 375 or page.evaluate("document.documentElement.scrollHeight") <= 2_500, view
            for number in range(page.locator("main details").count()):  # one form at a time is open
                page.evaluate("(number) => { document.querySelectorAll('main details')[number].open = true; }", number)
                assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], (view, number)
            found[f"{name}, open"] = violations(page) + page.evaluate(CLIPPED)
            page.context.close()
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize("width", [375, 768, 830, 1024, 1280])
def test_words_and_choices_are_not_broken_and_no_page_is_too_wide(width: int, site: Site, opened: OpenPage) -> None:
    for view in VIEWS:
        page = opened(site, TOKEN, view, viewport={"width": width, "height": 900})
        assert page.evaluate(BROKEN) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        if view == "bans":
            page.get_by_text("Ban…", exact=True).click()
            assert page.evaluate(NARROW) == []
        page.context.close()


def test_what_shadow_rules_would_have_refused_is_shown_on_a_phone(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, "?rule=tighter", viewport={"width": 375, "height": 812})
    expect(page.locator("dl")).to_contain_text(re.compile(r"In shadow\s*[1-9]\d* of \d+ would be limited"))
    expect(row(page, "Whom", "203.0.113.7").locator("td:visible")).to_have_text(re.compile(r"^[1-9]\d*$"))


def test_every_value_of_a_table_has_its_label_on_a_phone(site: Site, opened: OpenPage) -> None:
    for view in VIEWS:
        desk, phone = [opened(site, TOKEN, view, viewport={"width": width, "height": 812}) for width in (1280, 375)]
        heads = desk.locator("main table thead th:not(:first-child)").all_inner_texts()
        labels = phone.locator("main td[data-label]").evaluate_all("cells => cells.map((cell) => cell.dataset.label)")
        shown = phone.locator("main table thead th:visible").all_inner_texts()
        left_out = phone.locator("main table thead th.wide").all_text_contents()
        assert {*labels} <= {*heads}
        assert {*heads} - {*labels} - {*shown} - {*left_out} <= {"Action"}
        assert not phone.locator("main td.wide:visible").count()


def test_page_goes_by_the_keyboard(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, "bans")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("combobox", name="By")).to_be_focused()


FORMS = {
    "find": ("clients", [], "Find", {}),
    "ban by its value": ("bans", ["Ban…"], "Ban", {}),
    "ban a client": ("clients?key=203.0.113.7", ["Ban…"], "Ban 203.0.113.7", {"duration": "soon"}),
    "ban at once": ("", [], "Ban for 1 h", {"duration": "soon"}),
    "unban": ("bans", ["Unban…"], "Unban 198.51.100.0/24", {"key": "198.51.100.7"}),
    "change": ("configuration", ["Change…"], "Change login_60", {"duration": "soon"}),
    "restore": ("configuration", ["Restore…"], "Restore reports", {"name": "nothing"}),
    "switch off": ("configuration", ["Switch off…"], "Let every request pass", {"duration": "soon"}),
}
"""By form: its view, what opens it, its button, and what arrives in place of what was typed, so that it is refused."""


def sent_with(changed: dict[str, str]) -> Callable[[Route], None]:
    """Return what changes the fields of a form on its way."""

    def send(route: Route) -> None:
        form = dict(parse_qsl(route.request.post_data or "", keep_blank_values=True))
        route.continue_(post_data=urlencode(form | changed) if form else None)

    return send


def test_a_form_stays_open_and_its_error_with_what_was_typed_until_more_is_typed(opened: OpenPage) -> None:
    def refresh(page: Page) -> None:
        for _ in range(2):
            page.wait_for_event("response", lambda response: response.request.method == "GET")

    with served() as (site,):
        site.flood(CLIENT, AMOUNT + 30)
        put(site, "bans", key="198.51.100.0/24")
        put(site, "limits", name="reports", limit="300/10m")
        for name, (view, openers, button, changed) in FORMS.items():
            page = opened(site, TOKEN, view, expected="status of 4")
            page.route(re.compile("/slidegate/"), sent_with(changed))
            for opener in openers:
                page.get_by_text(opener, exact=True).first.click()
                refresh(page)
                expect(page.locator("main .pop[open]"), name).to_have_count(1)
            if changed == {}:
                expect(page.get_by_label("Name")).to_be_hidden()
                page.get_by_role("combobox", name="By").select_option("Cookie value")
                expect(page.get_by_label("Name")).to_be_visible()
                page.get_by_role("combobox", name="By").select_option(index=0)
                page.get_by_label("Value", exact=True).fill("203.0.113.O")
            page.get_by_role("button", name=button, exact=True).click()
            alert = page.get_by_role("alert")
            expect(alert, name).to_be_visible()
            text = alert.inner_text()
            refresh(page)
            page.wait_for_timeout(100)
            expect(alert, name).to_have_text(text)
            if changed == {}:
                assert "key: expected an address, a network or kind:value" in text
                expect(page.get_by_label("Value", exact=True)).to_have_value("203.0.113.O")
            page.evaluate("document.querySelector('main, #main').dispatchEvent(new Event('input', { bubbles: true }))")
            expect(alert, name).to_have_count(0)
            page.context.close()


def test_refresh_leaves_rows_fields_and_a_selection_alone(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, "clients")
    page.evaluate(
        "window.kept = [...document.querySelectorAll('main tr, main select, main button, main input, main a')]"
    )
    field = page.get_by_label("Value", exact=True)
    field.press_sequentially("203.0.113.2")
    page.evaluate("document.querySelector('main [name=value]').setSelectionRange(3, 6)")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="203.0.113.7"))
    before = row.get_by_role("cell").last.inner_text()
    site.flood("203.0.113.7", 3)
    expect(row.get_by_role("cell").last).not_to_have_text(before)
    expect(field).to_be_focused()
    expect(field).to_have_value("203.0.113.2")
    assert page.evaluate("[document.activeElement.selectionStart, document.activeElement.selectionEnd]") == [3, 6]
    assert page.evaluate("window.kept.length > 8 && window.kept.every((element) => element.isConnected)")

    # While text is selected, nothing is updated.
    page.evaluate("getSelection().selectAllChildren(document.querySelector('main tbody tr'))")
    expect(page.locator("#state")).to_have_text("Paused")
    before = row.inner_text()
    site.flood("203.0.113.7", 3)
    page.wait_for_timeout(2_500)
    assert row.inner_text() == before
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#state")).to_have_text("Live")
    expect(row).not_to_have_text(before)


def test_the_focus_stays_in_a_row_that_a_refresh_moves(site: Site, opened: OpenPage) -> None:
    site.ask("203.0.113.9")
    page = opened(site, TOKEN, "clients")
    link = page.get_by_role("link", name="203.0.113.9", exact=True)
    link.focus()
    site.flood("203.0.113.9", 90)
    expect(page.locator("main tr[data-key] a").first).to_have_text("203.0.113.9")
    expect(link).to_be_focused()


def test_times_are_those_of_the_reader(site: Site, opened: OpenPage) -> None:
    for view in ("", "bans"):
        page = opened(site, TOKEN, view, timezone_id="Asia/Kolkata")
        times = page.locator("main time").evaluate_all(  # in one step, because a refresh may come between two
            "labels => labels.map((label) => [label.textContent, new Date(label.dateTime).toLocaleString('sv')])"
        )
        assert times
        assert [text for text, _ in times] == [own for _, own in times]
    expect(page.locator("td[data-label=How] time").first).to_be_visible()
    assert not re.search(r"\dT\d", page.locator("main").inner_text()), "no text has a time in UTC"


def test_the_notice_of_a_change_leaves_the_address_at_once_and_then_the_page(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, "configuration?name=reports&done=override")
    expect(page.get_by_text("The change is made")).to_be_visible()
    expect(page.locator("#state")).to_have_text("Live")
    assert page.url.endswith("/configuration?name=reports")
    expect(page.get_by_text("The change is made")).to_be_hidden()
    page.goto(f"{site.dashboard}configuration?name=search&done=override")
    expect(page.locator("#state")).to_have_text("Live")
    assert "The change is made" not in page.content()


def test_page_says_when_it_fails_and_goes_on_but_not_after_a_wrong_token(site: Site, opened: OpenPage) -> None:
    page, refreshed = opened(site, TOKEN, expected="status of "), re.compile("/slidegate/$")
    page.route(refreshed, lambda route: route.fulfill(status=500))
    expect(page.locator("#state")).to_have_text("Failed (500)")
    page.unroute(refreshed)
    expect(page.locator("#state")).to_have_text("Live")
    page.route(refreshed, lambda route: route.fulfill(status=401))
    expect(page.locator("#state")).to_have_text("Signed out")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.wait_for_timeout(4_500)
    assert requests == [], "each would open a dialog"


# -- an operator sees a flood, finds the client, watches its window fill, bans it, and lifts the ban -------------------


CLIENT = "203.0.113.7"
REFUSED_BY_BAN = 403


@pytest.fixture
def sites(kind: str, url: str) -> Iterator[list[Site]]:
    with served(url, workers=4) if kind == "lmdb" else served(url, sites=2) as started:
        yield started


def row(page: Page, caption: str, name: str) -> Locator:
    """Return the row of a table whose first cell begins with `name`."""
    table = page.get_by_role("table", name=re.compile(f"^{caption}"))
    return table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=re.compile(rf"^{re.escape(name)}\b")))


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS])
def test_operator_watches_a_flood_and_bans_its_client(sites: list[Site], opened: OpenPage) -> None:
    page = opened(sites[0], TOKEN)

    # A flood through every server appears without a reload.
    first = AMOUNT * 2 // 3
    for number, site in enumerate(sites):
        share = first // len(sites) + (first % len(sites) if number == 0 else 0)
        assert set(site.flood(CLIENT, share)) == {200}
    everybody = row(page, "Rules", "everybody").get_by_role("cell")
    expect(everybody.nth(0)).to_have_text(str(first))
    expect(everybody.nth(1)).to_have_text("0")

    # The client is found, with the spent units of its window.
    tab(page, "Clients").click()
    page.get_by_label("Value", exact=True).fill(CLIENT)
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", name=CLIENT)).to_be_visible()
    window = page.get_by_role("region", name=re.compile("^everybody"))
    expect(window.get_by_text(f"{first} / {AMOUNT}")).to_be_visible()

    # The window fills while the page is open, and then refusals appear.
    statuses = [status for site in sites for status in site.flood(CLIENT, AMOUNT)]
    assert statuses.count(200) == AMOUNT - first
    expect(window.get_by_text(f"{AMOUNT} / {AMOUNT}")).to_be_visible()
    refusals = page.get_by_role("table", name="Latest refusals")
    expect(refusals.get_by_role("row").nth(1)).to_contain_text("everybody")
    tab(page, "Now").click()
    expect(everybody.nth(0)).to_have_text(str(AMOUNT))
    expect(everybody.nth(1)).to_have_text(str(statuses.count(429)))
    expect(row(page, "Refused most", CLIENT)).to_contain_text("everybody")

    # The ban applies to the next request, in every worker.
    page.get_by_role("link", name="Look at the client").click()
    page.get_by_text("Ban…", exact=True).click()
    page.get_by_label("Reason").fill("floods us")
    page.get_by_role("button", name=f"Ban {CLIENT}").click()
    expect(page.get_by_text("The change is made")).to_be_visible()
    expect(page.get_by_text("Banned", exact=True).first).to_be_visible()
    expect(page.get_by_text("floods us").first).to_be_visible()
    for site in sites:
        until(lambda site=site: set(site.flood(CLIENT, 12)) == {REFUSED_BY_BAN}, "every worker refuses the client")

    # After the ban is lifted, only the limit applies.
    page.get_by_text("Unban…", exact=True).click()
    page.get_by_role("button", name=f"Unban {CLIENT}").click()
    expect(page.get_by_text("Refused by everybody")).to_be_visible()
    for site in sites:
        until(lambda site=site: REFUSED_BY_BAN not in site.flood(CLIENT, 12), "no worker refuses it by a ban")


@pytest.mark.parametrize("java_script", [True, False])
def test_from_the_line_to_client_ban_and_limits_in_one_click_each(java_script: bool, opened: OpenPage) -> None:
    with served() as (site,):
        assert set(site.flood(CLIENT, 5 * AMOUNT + 50)) == {200, 429}
        page = opened(site, TOKEN, java_script_enabled=java_script)
        line = page.get_by_role("region", name="The last five minutes")
        expect(line).to_contain_text(f"{CLIENT} has 100 % of 170 refusals. This worker alone: the store is in memory.")
        expect(row(page, "Refused most", CLIENT)).to_contain_text("everybody")
        line.get_by_role("link", name="Look at the client").click()
        expect(page.get_by_role("heading", name=CLIENT)).to_be_visible()
        page.go_back()
        line.get_by_role("button", name="Ban for 1 h").click()
        expect(line).to_contain_text("Banned clients: 1, refused 170 times")
        expect(row(page, "Refused most", CLIENT)).to_contain_text("Banned")
        assert site.ask(CLIENT) == REFUSED_BY_BAN

        # An address of one's own network may be a proxy's: its ban is not offered.
        proxy = "10.0.0.7"
        assert set(site.flood(proxy, 5 * AMOUNT)) == {200, 429}

        def shows_the_proxy() -> bool:
            page.goto(site.dashboard)
            return f"{proxy} has 100 % of 120 refusals; look first: it is an address of" in line.inner_text()

        until(shows_the_proxy, "viewers share an answer for two seconds")
        expect(line.get_by_role("button", name="Ban")).to_have_count(0)
        line.get_by_role("link", name="Change a limit").click()
        expect(row(page, "Limits", "everybody")).to_be_visible()
        page.go_back()
        row(page, "Rules", "everybody").get_by_role("link").click()
        expect(page.get_by_role("heading", name="Rule everybody")).to_be_visible()
        expect(row(page, "Clients", CLIENT)).to_be_visible()
        page.context.close()  # before the server ends


def test_a_form_moves_nothing_and_goes_with_a_click_elsewhere(site: Site, opened: OpenPage) -> None:
    places = """() => [...document.querySelectorAll("main summary, main tr")]
        .map((one) => scrollY + one.getBoundingClientRect().top)"""
    for view in ("configuration", "bans", "clients?key=203.0.113.7"):
        page = opened(site, TOKEN, view)
        before = page.evaluate(places)
        for summary in page.locator("main .pop > summary").all():
            summary.click()
            assert page.evaluate(places) == before
            expect(page.locator("main .pop[open]")).to_have_count(1)
            page.locator("h1").click()
            expect(page.locator("main .pop[open]")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_those_without_a_token_has_its_style(scheme: str, site: Site, opened: OpenPage) -> None:
    answer = httpx.get(site.dashboard)
    assert answer.status_code == 401
    page = opened(site, None, "/", "status of 404", color_scheme=scheme)  # the application has no icon
    # As a browser shows it after its dialog was closed, which no test can do.
    page.route("**/signed-out", lambda route: route.fulfill(body=answer.text, content_type="text/html"))
    page.goto(f"{site.dashboard}signed-out")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderRadius") == "8px"
    assert violations(page) + page.evaluate(CLIPPED) == []


def test_all_of_it_works_without_scripts_and_a_page_with_them_says_that_its_server_stops(opened: OpenPage) -> None:
    with served() as (site,):
        key = {"X-API-Key": "k123-secret"}
        assert site.ask(CLIENT, "/reports", **key) == 200
        page = opened(site, TOKEN, java_script_enabled=False)
        expect(row(page, "Rules", "reports").get_by_role("cell").nth(0)).to_have_text("1")

        tab(page, "Clients").click()
        page.get_by_role("combobox", name="By").select_option("Header value")
        page.get_by_label("Name").fill("X-API-Key")
        page.get_by_label("Value", exact=True).fill("k123-secret")
        page.get_by_role("button", name="Find").click()
        expect(page.get_by_role("heading", name=re.compile("^header:x-api-key#"))).to_be_visible()
        assert "k123" not in page.url + page.content()

        page.get_by_text("Ban…", exact=True).click()
        page.get_by_role("button", name=re.compile("^Ban header:")).click()
        expect(page.get_by_text("The change is made")).to_be_visible()
        assert site.ask(CLIENT, "/reports", **key) == REFUSED_BY_BAN

        tab(page, "Configuration").click()
        page.get_by_label("Change everybody").click()
        page.get_by_label("Amount").locator("visible=true").fill("2")
        page.get_by_role("button", name="Change everybody").click()
        expect(row(page, "Limits", "everybody")).to_contain_text("2/10m")
        expect(row(page, "Changes in force", "everybody")).to_contain_text("ann")
        page.get_by_label("Restore everybody").click()
        page.get_by_role("button", name="Restore everybody").click()
        expect(page.get_by_text("The change is made")).to_be_visible()
        page.context.close()  # before the server ends
        page = opened(site, TOKEN, expected="net::ERR_")
    expect(page.locator("#state")).to_have_text("No connection")


# -- the built documentation site, at the widths of a desk and a phone -------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from the checkout into another directory."""
    copy = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", copy / "docs")  # the builder does not follow symbolic links
    for name in ("scripts", "src"):
        (copy / name).symlink_to(ROOT / name)
    for file in (ROOT / "mkdocs.yml", *ROOT.glob("*.md")):
        shutil.copy(file, copy)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "site"


FAULTS = """() => [
    ...(document.documentElement.scrollWidth > innerWidth ? [`${document.documentElement.scrollWidth} wide`] : []),
    ...[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src),
]"""


def test_no_page_is_too_wide_or_lacks_an_image_and_axe_finds_nothing(built: Path, opened: OpenPage) -> None:
    faults, widths = {}, [1280, 375]  # of a desk and of a phone
    pages = [path.parent.relative_to(built).as_posix() for path in built.rglob("index.html")]
    assert len(pages) > 20
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *said: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = Site(f"http://127.0.0.1:{server.server_port}")
        page = opened(site, None, "/404.html")
        # Every page would load the search index, which has its own test.
        page.route("**/search.json", lambda route: route.fulfill(json={"config": {}, "items": []}))
        for path in pages:
            page.goto(f"{site.url}/{path}/")
            # Pictures are loaded lazily, when scrolled into view.
            page.evaluate("document.querySelectorAll('img[loading=lazy]').forEach(image => image.loading = 'eager')")
            found = []
            for width in widths:
                page.set_viewport_size({"width": width, "height": 812})
                page.wait_for_function("[...document.images].every(image => image.complete)")
                found += page.evaluate(FAULTS) + violations(page, "article")  # what is ours of a page
            widths.reverse()  # so that the next page is not laid out a third time
            if found:
                faults[path] = found
        page.context.close()
        server.shutdown()
    assert faults == {}
