"""Takes the screenshots for the pages in docs/: the dashboard of four workers under simulated traffic.

Run ``python -m scripts.take_screenshots`` in the root of the checkout. It requires Chromium on PATH, and takes about
two minutes, because it generates traffic first.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import PROGRAM, arguments
from tests.browser.served import PATIENCE_S, Site, served
from tests.browser.site import TOKEN

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = ROOT / "docs" / "images"
TRAFFIC_S: Final = 75
SIZE: Final = {"width": 1280, "height": 960}
FLOOD: Final = "203.0.113.7"
PEOPLE: Final = [f"198.51.100.{number}" for number in range(2, 90)]
PATHS: Final = ("/", "/articles/sliding-windows", "/articles/retry-after", "/reports", "/articles/fair-queues")


def traffic(site: Site) -> None:
    """Send requests of many ordinary clients, and in the second half of the time a flood from one client."""
    chance, until_s = random.Random(1), time.monotonic() + TRAFFIC_S
    with httpx.Client(base_url=site.url, timeout=PATIENCE_S) as client:
        while (left_s := until_s - time.monotonic()) > 0:
            flooding = left_s < TRAFFIC_S / 2 and chance.random() < 0.4
            who = FLOOD if flooding else chance.choice(PEOPLE)
            fields = {"X-Forwarded-For": who, "X-API-Key": f"key-{chance.randint(1, 4)}"}
            client.get(chance.choice(PATHS), headers=fields)
            time.sleep(chance.random() * 0.02)


def main() -> None:
    """Generate traffic, and take the screenshots."""
    with tempfile.TemporaryDirectory() as folder, served(f"lmdb://{folder}/limits", workers=4) as (site,):
        traffic(site)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for target in (FLOOD, "192.0.2.0/28", "user:42"):
            ban = {"target": target, "duration": "6h", "reason": "floods the reports"}
            httpx.post(f"{site.dashboard}api/bans", headers=bearer, json=ban).raise_for_status()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=PROGRAM, args=arguments())
            for scheme in ("light", "dark"):
                take(browser, site, scheme)
            browser.close()
    print(f"written to {PICTURES}")


def take(browser: Browser, site: Site, scheme: Any) -> None:
    """Take the screenshots of one colour scheme."""
    password: Any = {"username": "ops", "password": TOKEN}
    page = browser.new_context(viewport=SIZE, color_scheme=scheme, http_credentials=password).new_page()
    page.goto(site.dashboard)
    page.locator("main table:visible").nth(2).wait_for()
    page.screenshot(path=PICTURES / f"dashboard-now-{scheme}.png")
    page.evaluate("view => { location.hash = view; }", f"clients/{FLOOD}")
    page.locator("main table:visible").nth(1).wait_for()
    page.wait_for_timeout(500)
    page.screenshot(path=PICTURES / f"dashboard-client-{scheme}.png")
    page.context.close()


if __name__ == "__main__":
    main()
