"""Pages of a list that changes while it is read: whoever stays is shown once, whatever comes and goes."""

from __future__ import annotations

import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.admin.pages import Page
from slidegate.admin.parameters import Unusable

TEXTS = st.text(max_size=6)


def page_of(entries: set[tuple[int, str]], most: int, cursor: str | None, seed: int) -> Page[tuple[int, str]]:
    page: Page[tuple[int, str]] = Page(most, cursor, [0, ""])
    in_any_order = sorted(entries)
    random.Random(seed).shuffle(in_any_order)
    for number, text in in_any_order:
        page.add([number, text], (number, text))
    return page


@given(
    stay=st.sets(st.tuples(st.integers(-5, 5), TEXTS), max_size=30),
    moves=st.lists(st.sets(st.tuples(st.integers(-5, 5), TEXTS), max_size=5), max_size=40),
    most=st.integers(1, 7),
    seed=st.integers(0, 2**16),
)
def test_whoever_stays_is_shown_once_and_in_order(
    stay: set[tuple[int, str]], moves: list[set[tuple[int, str]]], most: int, seed: int
) -> None:
    seen: list[tuple[int, str]] = []
    cursor: str | None = None
    turns = iter(moves)
    while True:
        page = page_of(stay | next(turns, set()), most, cursor, seed)
        assert len(page.entries()) <= most
        seen += page.entries()
        cursor = page.next()
        if cursor is None:
            break
    assert seen == sorted(set(seen)), "in order, and none twice"
    assert set(seen) >= stay


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40).map(lambda raw: base64.urlsafe_b64encode(raw).decode())))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(Unusable, match="the `next` of the page before"):
        Page[int](5, text, [0, ""])


@pytest.mark.parametrize("place", [[0], [0, "", 1], ["", 0], [True, ""], {"a": 1}, None])
def test_the_cursor_of_another_list_is_refused(place: object) -> None:
    text = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
    with pytest.raises(Unusable):
        Page[int](5, text, [0, ""])
