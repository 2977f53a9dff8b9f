"""Every view, in light and dark and on a phone: accessible to axe, and safe with untrusted text."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from .conftest import OpenPage
from .served import PATIENCE_S, Site, served
from .site import READ_TOKEN, TOKEN

pytestmark = pytest.mark.all

VIEWS = {
    "now": "Now",
    "clients/203.0.113.7": "Clients",
    "shadow": "Shadow",
    "bans": "Bans & lists",
    "config": "Configuration",
}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
STRANGE = [
    "user:<script>alert(1)</script>",
    'user:"><img src=x onerror=alert(1)>',
    "user:\u202egnp.exe\u2066\u200f",
    "user:\u0007\u001b[31m\r\nSet-Cookie: x",
]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A site with traffic of some clients."""
    with served() as (site,):
        site.flood("203.0.113.7", 40)
        site.flood("198.51.100.23", 15, "/reports", **{"X-API-Key": "<script>alert(1)</script>"})
        site.flood("198.51.100.24", 1, "/", **{"X-API-Key": "k" * 60_000})
        ban(site, "198.51.100.0/28")
        yield site


def ban(site: Site, target: str, reason: str = "") -> None:
    """Ban a client, like a script."""
    body = {"target": target, "duration": "1h", "reason": reason}
    assert httpx.post(f"{site.dashboard}api/bans", headers=BEARER, json=body).status_code == 201


def settled(page: Page) -> None:
    """Wait until the view shows stats and is live."""
    expect(page.locator("main table:visible, main .empty:visible").first).to_be_visible()
    expect(page.locator("main [aria-busy]")).to_have_count(0)
    expect(page.locator("#state")).to_have_text("Live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view_and_none_is_wider_than_a_phone(
    scheme: str, site: Site, opened: OpenPage
) -> None:
    found: dict[str, list[str]] = {}
    columns: dict[str, list[set[str]]] = {}
    for size in ({"width": 1280, "height": 900}, {"width": 375, "height": 812}):
        page = opened(site, TOKEN, color_scheme=scheme, viewport=size)
        for view, title in VIEWS.items():
            page.evaluate("view => { location.hash = view; }", view)
            expect(page.get_by_role("tab", name=title)).to_have_attribute("aria-selected", "true")
            settled(page)
            found[f"{view} {size}"] = violations(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], view
            heads = page.locator("main thead th, main .below dt").all_inner_texts()
            columns.setdefault(view, []).append({head for head in heads if head})
        page.evaluate("() => { location.hash = 'bans'; }")
        page.get_by_role("button", name="Ban…").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        found[f"dialog {size}"] = violations(page)
    assert {view: what for view, what in found.items() if what} == {}
    for view, (desk, phone) in columns.items():
        assert desk == phone, f"no column of {view} vanishes on a phone"
    assert page.locator("main .below").first.is_visible()


def violations(page: Page) -> list[str]:
    """Return the violations that axe finds, with their elements."""
    response = Axe().run(page).response
    return [f"{found['id']}: {[node['target'] for node in found['nodes']]}" for found in response["violations"]]


def test_texts_of_strangers_are_shown_as_text(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, "#bans")
    for target in STRANGE:
        ban(site, target)
    ban(site, "user:1", "</td><script>alert(1)</script>\u202e" + "r" * 100)
    bans = page.get_by_role("table", name=re.compile("^Active bans"))
    expect(bans.get_by_text("user:1", exact=True)).to_be_visible()
    for view in VIEWS:
        page.evaluate("view => { location.hash = view; }", view)
        settled(page)
        assert page.locator("main script, main img, main iframe").count() == 0
        shown = page.locator("main").inner_text()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown)
    page.evaluate("() => { location.hash = 'bans'; }")
    expect(bans.get_by_text("<script>", exact=False).first).to_be_visible()


def test_a_changed_limit_is_shown_and_restored(site: Site, opened: OpenPage) -> None:
    change = {"name": "everybody", "limit": "300/10m", "duration": "1h", "reason": "<b>imports</b>"}
    assert httpx.put(f"{site.dashboard}api/limits", headers=BEARER, json=change).status_code == 200
    page = opened(site, TOKEN, "#bans")
    limits = page.get_by_role("table", name="Changed limits")
    expect(limits.get_by_text("300/10m")).to_be_visible()
    expect(limits.get_by_text("<b>imports</b>")).to_be_visible()
    page.get_by_role("button", name="Restore everybody").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_text("Every limit is as configured in code.", exact=False)).to_be_visible()
    assert httpx.get(f"{site.dashboard}api/limits", headers=BEARER).json() == {"limits": []}


def test_the_tabs_go_by_the_keyboard_and_a_dialog_holds_the_focus(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN)
    tabs = page.get_by_role("tab")
    tabs.first.focus()
    for key, name in (
        ("ArrowLeft", "Configuration"),
        ("Home", "Now"),
        ("ArrowRight", "Clients"),
        ("End", "Configuration"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    assert [tabs.nth(place).get_attribute("tabindex") for place in range(5)] == ["-1", "-1", "-1", "-1", "0"]
    page.get_by_role("tab", name="Bans & lists").click()
    page.get_by_role("button", name="Ban…").click()
    for _ in range(12):
        page.keyboard.press("Tab")
        # After the last field, the focus moves to the browser's buttons, never below the dialog.
        assert page.evaluate("!document.activeElement.closest('main, header')")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Ban…")).to_be_focused()


def test_a_reader_looks_and_changes_nothing(site: Site, opened: OpenPage) -> None:
    page = opened(site, READ_TOKEN, "#bans")
    expect(page.get_by_role("table", name=re.compile("^Active bans"))).to_be_visible()
    expect(page.get_by_text("Read-only")).to_be_visible()
    expect(page.get_by_role("button", name="Ban…")).to_be_disabled()
    expect(page.get_by_role("button", name="Unban").first).to_be_disabled()
    page.get_by_role("tab", name="Clients").click()
    page.get_by_role("link", name=re.compile("^header:x-api-key")).first.click()
    expect(page.get_by_role("heading", name=re.compile("^header:x-api-key"))).to_be_visible()
    expect(page.get_by_role("button", name="Ban…")).to_be_disabled()


def test_a_view_that_fails_says_so_and_asks_again(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, "#clients", expected="TypeError")
    asked = re.compile(r"/api/clients(\?|$)")
    page.route(asked, lambda route: route.fulfill(json={"clients": None}))
    expect(page.locator("#state")).to_have_text("Failed")
    expect(page.get_by_role("alert").first).to_contain_text("This view has failed (TypeError")
    page.unroute(asked)
    expect(page.locator("#state")).to_have_text("Live")
    expect(page.get_by_role("alert").first).to_be_hidden()


def test_the_values_of_a_chart_are_read_by_keyboard(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN)
    settled(page)
    chart = page.get_by_role("figure", name="Requests per second")
    label = re.compile(r"Requests per second since .*: Passed ")
    expect(chart.get_by_role("img")).to_have_attribute("aria-label", label)
    cursor = chart.get_by_role("slider", name="Requests per second, by time")
    expect(chart.locator(".tip")).to_be_hidden()
    cursor.focus()
    expect(chart.locator(".tip")).to_be_visible()
    newest = int(cursor.input_value())
    page.keyboard.press("ArrowLeft")
    expect(cursor).to_have_value(str(newest - 1))
    expect(cursor).to_have_attribute("aria-valuetext", re.compile(r"\d: Passed [\d.]+, Limited [\d.]+, By bans"))
    page.keyboard.press("Home")
    expect(cursor).to_have_value("0")
    first = cursor.get_attribute("aria-valuetext") or ""
    expect(chart.locator(".tip strong")).to_have_text(first.partition(": ")[0])
    page.keyboard.press("Tab")
    expect(chart.locator(".tip")).to_be_hidden()


def test_a_refresh_leaves_rows_fields_buttons_and_a_selection_alone(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, "#clients")
    settled(page)
    page.evaluate("""() => {
        window.kept = [...document.querySelectorAll("main tr, main select, main button, main input, main a")];
        document.querySelector("main select").focus();
    }""")
    site.flood("203.0.113.7", 3)
    for _ in range(3):
        page.wait_for_event("response", lambda response: "/api/clients" in response.url)
    assert page.evaluate("window.kept.length > 8 && window.kept.every((element) => element.isConnected)")
    assert page.evaluate("document.activeElement.localName") == "select"
    # The counts were updated in the same cells.
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="203.0.113.7"))
    expect(row.get_by_role("cell").first).not_to_have_text("40")

    # While text is selected, nothing is updated.
    page.evaluate("""() => {
        const range = document.createRange();
        range.selectNodeContents(document.querySelector("main tbody tr"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
    }""")
    before = row.inner_text()
    site.flood("203.0.113.7", 3)
    expect(page.locator("#state")).to_have_text("Paused")
    page.wait_for_timeout(2_500)
    assert row.inner_text() == before
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#state")).to_have_text("Live")
    expect(row).not_to_have_text(before)


def test_to_ban_ones_own_address_is_asked_about_twice(site: Site, opened: OpenPage) -> None:
    own = {"X-Forwarded-For": "203.0.113.60"}
    page = opened(site, TOKEN, "#bans", expected="status of 4", extra_http_headers=own)
    page.get_by_role("button", name="Ban…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address, network or key").fill("203.0.113.56/29")
    expect(dialog.get_by_role("checkbox")).to_be_hidden()
    dialog.get_by_role("button", name="Ban", exact=True).click()
    alert = dialog.get_by_role("alert")
    expect(alert).to_have_text("This would ban your own address. Tick the box to ban it anyway.")
    dialog.get_by_label("Yes, ban my own address").check()
    dialog.get_by_role("button", name="Ban", exact=True).click()
    expect(dialog).to_have_count(0)
    found = httpx.get(f"{site.dashboard}api/bans", headers=BEARER, params={"q": "203.0.113.56"}).json()["bans"]
    assert [one["target"] for one in found] == ["203.0.113.56/29"]


def test_a_page_that_the_middleware_counts_says_which_rule_would_exempt_it(site: Site, opened: OpenPage) -> None:
    client = "203.0.113.77"
    page = opened(site, TOKEN, expected="status of 429", at="/counted/", extra_http_headers={"X-Forwarded-For": client})
    site.flood(client, 40)
    page.get_by_role("tab", name="Configuration").click()
    expect(page.get_by_role("alert")).to_contain_text('Rule("/counted/{rest:path}", exempt=True)')


def test_a_token_that_is_no_longer_right_ends_the_questions(site: Site, opened: OpenPage) -> None:
    page = opened(site, TOKEN, expected="status of 401")
    settled(page)
    asked: list[str] = []
    page.route(re.compile("/api/now"), lambda route: asked.append(route.request.url) or route.fulfill(status=401))
    expect(page.locator("#state")).to_have_text("Signed out")
    expect(page.get_by_role("alert")).to_contain_text("Reload the page to sign in.")
    page.wait_for_timeout(4_500)
    assert len(asked) == 1, "each question would open a dialog"


def test_a_server_stops_at_once_with_a_page_open_and_the_page_says_so(opened: OpenPage) -> None:
    with served() as (site,):
        page = opened(site, TOKEN, expected="net::ERR_")
        settled(page)
        site.process.send_signal(signal.SIGTERM)
        assert site.process.wait(timeout=PATIENCE_S / 2) in {0, -signal.SIGTERM}
        expect(page.locator("#state")).to_have_text("No connection")
        expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
