"""Takes the screenshots for the pages in docs/: /docs of the demo, and the dashboard of four workers under traffic.

Run ``python -m scripts.take_screenshots dashboard`` in the root of the checkout, which takes five minutes, because it
generates traffic first, and ``python -m scripts.take_screenshots docs``. Both require Chromium on PATH. What the page
/docs loads from elsewhere is answered from build/: ``npm install --prefix build/swagger-ui swagger-ui-dist``.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, Route, sync_playwright
from starlette.testclient import TestClient

from examples.demo.app import app
from tests.browser.chromium import PROGRAM, arguments
from tests.browser.site import TOKEN, Site, served
from tests.workers import PATIENCE_S

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = ROOT / "docs" / "images"
SWAGGER: Final = ROOT / "build" / "swagger-ui" / "node_modules" / "swagger-ui-dist"
TRAFFIC_S: Final = 260
MARGIN_S: Final = 30
"""How long before its end the pictures are taken."""
SIZE: Final = {"width": 1280, "height": 960}
FLOOD: Final = "203.0.113.7"
BUSY: Final = "192.0.2.200"
"""An ordinary client that sends more than others."""
PEOPLE: Final = [f"198.51.100.{number}" for number in range(2, 250)]
PATHS: Final = (*["/"] * 12, *["/reports"] * 6, "/search")
BEARER: Final = {"Authorization": f"Bearer {TOKEN}"}


def traffic(site: Site) -> None:
    """Send requests of many ordinary clients, and from the middle on a flood of one."""
    chance, until_s, is_changed = random.Random(1), time.monotonic() + TRAFFIC_S, False
    with httpx.Client(base_url=site.url, timeout=PATIENCE_S) as client:
        while (left_s := until_s - time.monotonic()) > 0:
            who = sender(chance, is_second_half=left_s < TRAFFIC_S / 2)
            fields = {"X-Forwarded-For": who, "X-API-Key": f"key of {who}"}
            client.get(chance.choice(PATHS), headers=fields)
            if left_s < TRAFFIC_S / 4 and not is_changed:
                is_changed = True
                change(site)
            time.sleep(chance.random() * chance.choice((0.02, 0.04)))


def sender(chance: random.Random, *, is_second_half: bool) -> str:
    """Return the address that sends the next request."""
    flood_share = 0.01
    if is_second_half:
        flood_share = 0.12
    if chance.random() < flood_share:
        return FLOOD
    if chance.random() < 0.03:
        return BUSY
    return chance.choice(PEOPLE)


def change(site: Site) -> None:
    """Ban a network, and change a limit."""
    ban(site, "192.0.2.0/28", "scans for passwords")
    limit = {"name": "reports", "limit": "400/10m", "duration": "2h", "reason": "month's end"}
    httpx.put(f"{site.dashboard}api/limits", headers=BEARER, json=limit).raise_for_status()


def ban(site: Site, key: str, reason: str) -> None:
    """Ban a client."""
    said = {"key": key, "duration": "6h", "reason": reason}
    httpx.post(f"{site.dashboard}api/bans", headers=BEARER, json=said).raise_for_status()


def take(browser: Browser, site: Site) -> None:
    """Take the screenshots: of the flood, and of its client when it is banned."""
    take_view(browser, site, "now", "")
    ban(site, FLOOD, "floods the reports")
    take_view(browser, site, "client", f"clients?key={FLOOD}")


def take_view(browser: Browser, site: Site, name: str, path: str) -> None:
    """Take the screenshots of one view."""
    password: Any = {"username": "ann", "password": TOKEN}
    for scheme in ("light", "dark"):
        options: Any = {"viewport": SIZE, "color_scheme": scheme, "http_credentials": password}
        page = browser.new_context(**options).new_page()
        page.goto(site.dashboard + path)
        page.get_by_text("Live", exact=True).wait_for()
        page.screenshot(path=PICTURES / f"dashboard-{name}-{scheme}.png")
        page.context.close()


def take_document(browser: Browser) -> None:
    """Take the screenshot of /docs: how the login refuses, and its limits."""
    demo = TestClient(app, "http://demo.example", client=("192.0.2.1", 1))

    def answer(route: Route) -> None:
        url = route.request.url
        if url.startswith("http://demo.example/"):
            answered = demo.get(url)
            route.fulfill(status=answered.status_code, headers=dict(answered.headers), body=answered.content)
        elif "swagger-ui" in url:
            route.fulfill(path=SWAGGER / url.rpartition("/")[2])
        else:
            route.abort()

    page = browser.new_context(viewport={"width": 1000, "height": 1800}).new_page()
    page.route("**/*", answer)
    page.goto("http://demo.example/docs")
    login = page.locator(".opblock-post", has_text="/login")
    login.locator(".opblock-summary-control").click()
    refused: Any = login.locator('[data-code="429"]').bounding_box()
    whole: Any = login.bounding_box()
    shown: Any = {**whole, "y": refused["y"], "height": whole["y"] + whole["height"] - refused["y"]}
    page.screenshot(path=PICTURES / "openapi.png", clip=shown, full_page=True)


def take_dashboard(browser: Browser) -> None:
    """Generate traffic, and take the screenshots of the dashboard."""
    with tempfile.TemporaryDirectory() as folder, served(f"lmdb://{folder}/limits", workers=4) as (site,):
        sending = threading.Thread(target=traffic, args=(site,))
        sending.start()
        time.sleep(TRAFFIC_S - MARGIN_S)
        take(browser, site)
        sending.join()


TAKEN: Final = {"docs": take_document, "dashboard": take_dashboard}


def main(*names: str) -> None:
    """Take the named screenshots, or all."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=arguments())
        for name in names or TAKEN:
            TAKEN[name](browser)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
