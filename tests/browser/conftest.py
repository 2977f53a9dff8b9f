"""One Chromium for all tests of this directory; its pages must not request other hosts or log errors."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from ..workers import PATIENCE_S
from .chromium import MISSING, PROGRAM, arguments
from .site import Site

PATIENCE_MS = PATIENCE_S * 1_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this directory if Chromium is not installed."""
    for item in items:
        if PROGRAM is None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=MISSING))


# Playwright's event loop occupies its thread, in which no other test could run one.
@pytest.fixture(scope="package")
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

    def open_page(
        site: Site,
        token: str | None,
        view: str = "",
        expected: str | None = None,
        at: str | None = None,
        **options: Any,
    ) -> Page:
        def note(message: ConsoleMessage) -> None:
            # Chromium logs each error response, and some tests provoke them.
            meant = expected is not None and expected in message.text
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
        page.on(
            "request", lambda request: request.url.startswith((site.url, "data:", "blob:")) or wrong.append(request.url)
        )
        page.goto(site.dashboard + view if at is None else site.url + at)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
