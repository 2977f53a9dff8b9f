"""Takes the pictures of the dashboard in docs/images, in four minutes: `python -m scripts.take_screenshots`.

Four workers serve many clients. From the middle on one of them floods; at the end it is banned.
"""

import random
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import PROGRAM, arguments
from tests.browser.site import TOKEN, Site, served

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
TRAFFIC_S: Final = 230
FLOOD: Final = "203.0.113.7"


def traffic(site: Site) -> None:
    """Send requests of many clients, and from the middle on every eighth of one alone."""
    chance, begun_s = random.Random(1), time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < TRAFFIC_S + 30:  # until the pictures are taken
        who = f"198.51.100.{chance.randrange(2, 250)}"
        if passed_s > TRAFFIC_S / 2 and chance.random() < 1 / 8:
            who = FLOOD
        site.ask(who, chance.choice(("/", "/", "/", "/reports")), **{"X-API-Key": f"key of {who}"})
        time.sleep(chance.random() / 10)


def take(browser: Browser, site: Site, name: str, path: str = "") -> None:
    """Take the pictures of a view."""
    for scheme in ("light", "dark"):
        options: Any = {"viewport": {"width": 1280, "height": 960}, "color_scheme": scheme}
        page = browser.new_context(**options, http_credentials={"username": "ann", "password": TOKEN}).new_page()
        page.goto(site.dashboard + path)
        page.get_by_text("Live", exact=True).wait_for()
        page.screenshot(path=PICTURES / f"dashboard-{name}-{scheme}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, served(f"lmdb://{folder}/limits", workers=4) as (served_site,):
        sender = Thread(target=traffic, args=(served_site,))
        sender.start()
        time.sleep(TRAFFIC_S)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=PROGRAM, args=arguments())
            take(chromium, served_site, "now")
            ban = {"key": FLOOD, "duration": "6h", "reason": "floods the reports"}
            api = {"url": f"{served_site.dashboard}api/bans", "headers": {"Authorization": f"Bearer {TOKEN}"}}
            httpx.post(**api, json=ban).raise_for_status()
            take(chromium, served_site, "client", f"clients?key={FLOOD}")
        sender.join()
