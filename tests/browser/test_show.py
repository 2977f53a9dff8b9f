"""An operator sees a flood, finds the client, watches its window fill, bans it, and lifts the ban.

The same with four workers on one host, with two servers on Redis, and in a browser that runs no scripts.
"""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from ..redis_servers import AT_REDIS, until
from .conftest import OpenPage
from .served import Site, served
from .site import AMOUNT, TOKEN

pytestmark = pytest.mark.all

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
    page.get_by_role("link", name="Clients").click()
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
    page.get_by_role("link", name="Now").click()
    expect(everybody.nth(0)).to_have_text(str(AMOUNT))
    expect(everybody.nth(1)).to_have_text(str(statuses.count(429)))
    expect(row(page, "Nearest to a limit", CLIENT)).to_contain_text(f"{AMOUNT} / {AMOUNT}")

    # The ban applies to the next request, in every worker.
    page.get_by_role("link", name=CLIENT).click()
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
    expect(page.get_by_text("Not banned")).to_be_visible()
    for site in sites:
        until(lambda site=site: REFUSED_BY_BAN not in site.flood(CLIENT, 12), "no worker refuses it by a ban")


def test_all_of_it_works_without_scripts(opened: OpenPage) -> None:
    with served() as (site,):
        key = {"X-API-Key": "k123-secret"}
        assert site.ask(CLIENT, "/reports", **key) == 200
        page = opened(site, TOKEN, java_script_enabled=False)
        expect(row(page, "Rules", "reports").get_by_role("cell").nth(0)).to_have_text("1")
        page.locator("figure").first.get_by_text("As a table").click()
        expect(page.get_by_role("region", name="Requests per second, as a table")).to_be_visible()

        page.get_by_role("link", name="Clients").click()
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

        page.get_by_role("link", name="Configuration").click()
        page.get_by_label("Change everybody").click()
        page.get_by_label("Amount").locator("visible=true").fill("2")
        page.get_by_role("button", name="Change everybody").click()
        expect(row(page, "Limits", "everybody")).to_contain_text("2/10m")
        expect(row(page, "Limits", "everybody")).to_contain_text("by ann")
        page.get_by_label("Restore everybody").click()
        page.get_by_role("button", name="Restore everybody").click()
        expect(page.get_by_text("The change is made")).to_be_visible()
        page.context.close()  # before the server ends
