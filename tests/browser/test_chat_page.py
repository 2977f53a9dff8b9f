"""The page of the chat: two people talk, markup stays text, and a close is explained in words."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from playwright.sync_api import Page, expect

from ..examples.visits import running
from .conftest import OpenPage

pytestmark = pytest.mark.all


@pytest.fixture(scope="module")
def chat() -> Iterator[SimpleNamespace]:
    """The chat as `python3 dev.py example chat` serves it, after its visit."""
    with running("examples.chat", hints=2) as example:
        yield SimpleNamespace(url=example.url, dashboard=f"{example.url}/")


def join(page: Page, name: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Join").click()
    expect(page.get_by_role("status")).to_have_text("You are in lobby.")


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()


def test_two_people_talk_and_a_close_is_explained(chat: SimpleNamespace, opened: OpenPage) -> None:
    # A script of this page sends the messages: a person who types is too slow to be stopped.
    ann, ben = opened(chat, None), opened(chat, None, viewport={"width": 375, "height": 700})
    join(ann, "Ann")
    join(ben, "Ben")
    say(ann, "<b>hello</b> Ben")
    expect(ben.get_by_role("log")).to_contain_text("Ann: <b>hello</b> Ben")
    say(ben, "hello Ann")
    expect(ann.get_by_role("log")).to_contain_text("Ben: hello Ann")
    assert ben.evaluate("document.documentElement.scrollWidth <= innerWidth")

    ann.evaluate(
        """() => {
            const form = document.getElementById("write");
            for (let number = 0; number < 6; number++) {
                form.elements.text.value = `buy number ${number}`;
                form.requestSubmit();
            }
        }"""
    )
    expect(ann.get_by_role("status")).to_contain_text("too much at once")
    expect(ann.get_by_role("button", name="Join")).to_be_enabled()
    expect(ben.get_by_role("log")).to_contain_text("Ann left")
