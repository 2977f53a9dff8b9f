"""Takes the pictures for the pages in docs/: the dashboard of four workers under made-up traffic, and a simulation.

Run it from the root of the checkout: ``python -m scripts.take_screenshots``. It needs Chromium on PATH, and takes
about two minutes, in which traffic comes and goes. ``python -m scripts.take_screenshots simulation`` takes those of the
report of a simulation alone, in seconds.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.chromium import PROGRAM, arguments
from tests.browser.served import PATIENCE_S, Site, served
from tests.browser.site import TOKEN

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURES: Final = ROOT / "docs" / "images"
MAX_BYTES: Final = 150_000
TRAFFIC_S: Final = 75
SEED: Final = 20_260_303
SIZE: Final = {"width": 1280, "height": 960}
REPORT: Final = {"width": 880, "height": 945}
FLOOD: Final = "203.0.113.7"
PEOPLE: Final = [f"198.51.100.{number}" for number in range(2, 90)]
PATHS: Final = ("/", "/articles/sliding-windows", "/articles/retry-after", "/reports", "/articles/fair-queues")


def traffic(site: Site, until_s: float) -> None:
    """Send requests: many people who read, and one client that floods in the second half of the time."""
    chance = random.Random(SEED)
    start_s = time.monotonic()
    with httpx.Client(base_url=site.url, timeout=PATIENCE_S) as client:
        while time.monotonic() < until_s:
            flooding = (time.monotonic() - start_s) > TRAFFIC_S / 2 and chance.random() < 0.4
            who = FLOOD if flooding else chance.choice(PEOPLE)
            key = f"key-{chance.randint(1, 4)}"
            client.get(chance.choice(PATHS), headers={"X-Forwarded-For": who, "X-API-Key": key})
            if chance.random() < 0.05:
                client.post("/login", headers={"X-Forwarded-For": chance.choice(PEOPLE[:4])})
            time.sleep(chance.random() * 0.05)


def main() -> int:
    """Take the pictures, and fail if one is too large."""
    PICTURES.mkdir(exist_ok=True)
    simulation()
    if sys.argv[1:] != ["simulation"]:
        dashboard()
    large = [path.name for path in PICTURES.glob("*.png") if path.stat().st_size > MAX_BYTES]
    print(f"too large: {', '.join(large)}" if large else f"written to {PICTURES}")
    return 1 if large else 0


def simulation() -> None:
    """Take the pictures of the report about the sample log."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        report = Path(place, "report.html")
        words = ["simulate", "examples/demo/sample.log", "--limit", "30/minute; 300/hour", "--ban-after", "20/10m"]
        command = [sys.executable, "-m", "slidegate", *words, "--quiet", "--html", str(report)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=arguments())
        for scheme in ("light", "dark"):
            page = browser.new_context(viewport=REPORT, color_scheme=scheme).new_page()
            page.goto(report.as_uri())
            page.screenshot(path=PICTURES / f"simulation-{scheme}.png")
        browser.close()


def dashboard() -> None:
    """Make traffic, and take the pictures of the dashboard."""
    with tempfile.TemporaryDirectory() as place, served(f"lmdb://{place}/limits", workers=4) as (site,):
        until_s = time.monotonic() + TRAFFIC_S
        crowd = [threading.Thread(target=traffic, args=(site, until_s)) for _ in range(2)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for target, reason in ((FLOOD, "floods the reports"), ("192.0.2.0/28", "scanners"), ("user:42", "chargeback")):
            ban = {"target": target, "duration": "6h", "reason": reason}
            httpx.post(f"{site.dashboard}api/bans", headers=bearer, json=ban).raise_for_status()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=PROGRAM, args=arguments())
            for scheme in ("light", "dark"):
                take(browser, site, scheme)
            browser.close()


def take(browser: Browser, site: Site, scheme: str) -> None:
    """Take the pictures of one scheme."""
    page = opened(browser, site, scheme)
    page.screenshot(path=PICTURES / f"dashboard-now-{scheme}.png")
    page.evaluate("view => { location.hash = view; }", f"clients/{FLOOD}")
    page.locator("main table:visible").nth(1).wait_for()
    page.wait_for_timeout(500)
    page.screenshot(path=PICTURES / f"dashboard-client-{scheme}.png")
    page.context.close()


def opened(browser: Browser, site: Site, scheme: str) -> Page:
    """Return the page with stats, as somebody with the token sees it."""
    password = {"username": "ops", "password": TOKEN}
    page = browser.new_context(viewport=SIZE, color_scheme=scheme, http_credentials=password).new_page()
    page.goto(site.dashboard)
    page.locator("main table:visible").nth(2).wait_for()
    return page


if __name__ == "__main__":
    sys.exit(main())
