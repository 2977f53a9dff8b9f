"""The pictures of docs/concepts in Chromium: no text lies over another, none is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from scripts.concepts import gallery
from scripts.concepts.paper import THEMES, Paper, Picture

BOXES = """() => {
  const sheet = document.querySelector("svg").getBoundingClientRect();
  const boxes = [...document.querySelectorAll("text")].map(text => {
    const box = text.getBoundingClientRect();
    return {words: text.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom};
  });
  return {sheet: {left: sheet.left, right: sheet.right, top: sheet.top, bottom: sheet.bottom}, boxes};
}"""
LEADING = 3
"""How far the boxes of two lines may reach into each other, in CSS pixels: fonts leave room above and below letters."""


@pytest.fixture
def sheet(chromium: Browser) -> Iterator[Page]:
    """A page of the width of a telephone."""
    page = chromium.new_page(viewport={"width": 375, "height": 900})
    yield page
    page.close()


def faults(page: Page, svg: str) -> list[str]:
    """Return the texts of a picture that are cut off or lie over each other."""
    page.set_content(f"<style>body {{ margin: 0 }} svg {{ width: 343px; height: auto; display: block }}</style>{svg}")
    found: dict[str, Any] = page.evaluate(BOXES)
    ground, boxes = found["sheet"], found["boxes"]
    assert boxes, "there is nothing to read"
    wrong = [
        f"{box['words']!r} is cut off"
        for box in boxes
        if box["left"] < ground["left"] + 1
        or box["right"] > ground["right"] - 1
        or box["top"] < ground["top"]
        or box["bottom"] > ground["bottom"]
    ]
    for place, one in enumerate(boxes):
        for other in boxes[place + 1 :]:
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
            if across > 0 and down > LEADING:
                wrong.append(f"{one['words']!r} lies over {other['words']!r}")
    return wrong


def test_no_text_of_a_picture_is_cut_off_or_lies_over_another(sheet: Page) -> None:
    drawn = [(picture.name, faults(sheet, picture.svg(THEMES["light"]))) for picture in gallery.pictures()]
    assert len(drawn) > 5
    assert [(name, wrong) for name, wrong in drawn if wrong] == []


@pytest.mark.parametrize(
    ("x", "y", "fault"), [(-5, 60, "cut off"), (330, 60, "cut off"), (20, 99, "cut off"), (20, 26, "lies over")]
)
def test_a_text_in_the_wrong_place_is_found(sheet: Page, x: int, y: int, fault: str) -> None:
    def draw(paper: Paper) -> None:
        paper.text(x, y, "a text of some length")

    (wrong,) = faults(sheet, Picture("wrong", "A heading", "Nothing.", 100, draw).svg(THEMES["dark"]))
    assert fault in wrong
