"""A memo is bounded in entries and in bytes."""

from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core.memo import key_bytes, remember


@example([*range(200)], 128)
@given(st.lists(st.integers(0, 500), max_size=400), st.integers(1, 300))
def test_a_full_memo_gives_up_a_few_of_its_oldest_entries(keys: list[int], max_size: int) -> None:
    memo: dict[int, int] = {}
    for key in dict.fromkeys(keys):
        before = list(memo)
        assert remember(memo, key, -key, max_size) == -key
        gone = len(before) + 1 - len(memo)
        assert len(memo) <= max_size
        assert gone <= 1 + max_size // 64
        assert gone == 0 or len(before) == max_size
        assert memo == {one: -one for one in [*before[gone:], key]}


def test_a_key_with_more_bytes_is_not_remembered() -> None:
    memo: dict[object, int] = {}
    most = key_bytes(("x" * 100, 5, None))
    for length in (100, 101):
        remember(memo, ("x" * length, 5, None), length, max_bytes=most)
    assert list(memo.values()) == [100]
