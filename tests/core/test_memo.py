"""A memo is bounded in entries and in bytes."""

from __future__ import annotations

from slidegate.core.memo import remember, text_bytes


def test_a_full_memo_is_emptied_and_a_heavy_question_is_not_remembered() -> None:
    memo: dict[object, int] = {}
    for number in range(7):
        assert remember(memo, ("key", number), number, max_size=3) == number
        assert len(memo) == number % 3 + 1
    most = text_bytes("x" * 100)
    for length in (100, 101):
        remember(memo, "x" * length, length, max_bytes=most)
    assert "x" * 100 in memo
    assert "x" * 101 not in memo


def test_texts_weigh_and_numbers_do_not() -> None:
    assert text_bytes(("a", 5, (b"b", None))) == text_bytes("a") + text_bytes(b"b") > 0
