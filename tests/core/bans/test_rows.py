"""Bans as rows: an export has their fields as they are, and is read again at any time."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import Ban, ConfigurationError
from slidegate.core.bans.rows import from_rows, to_rows

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
EVE = Ban("user:eve", "why", "abuse", 2, NOW_US - 7, NOW_US + HOUR_US)
NET = Ban("192.0.2.0/24", "", "ann", 0, NOW_US - HOUR_US, None)

moments_us = st.integers(-(2**53), 2**53)
bans = st.builds(
    Ban,
    st.sampled_from(["192.0.2.7", "2001:db8::/64", "198.51.100.0/24", "user:ann", "header:x-api-key#" + 32 * "f"]),
    st.text(max_size=20).map(str.strip).filter(str.isprintable),
    st.sampled_from(["abuse", "ann"]),
    st.integers(0, 2**31),
    moments_us,
    st.none() | moments_us,
)


def rows() -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(json.dumps([*to_rows([EVE, NET])]))
    return read


@given(st.lists(bans), moments_us)
def test_what_is_exported_is_imported_as_it_was_without_what_is_over(exported: list[Ban], now_us: int) -> None:
    read = json.loads(json.dumps([*to_rows(exported)]))
    assert [list(row.values()) for row in read[1:]] == [list(ban) for ban in exported]
    assert from_rows(read, now_us) == [ban for ban in exported if not ban.is_over(now_us)]


@given(st.integers(0, 2), st.none() | st.integers() | st.sampled_from([[], {}, "ban", ["ban"]]), st.data())
def test_a_row_that_is_none_or_lacks_a_field_is_named(index: int, row: Any, data: st.DataObject) -> None:
    assert from_rows(rows()[:1], NOW_US) == []
    spoiled: list[Any] = rows()
    if data.draw(st.booleans()):
        spoiled[index] = row
    else:
        del spoiled[index][data.draw(st.sampled_from([*spoiled[index]]))]
    with pytest.raises(ConfigurationError, match=f"^bans, row {index + 1}: cannot be read: "):
        from_rows(spoiled, NOW_US)


def test_levels_above_the_largest_are_reduced_so_that_they_can_grow() -> None:
    assert from_rows([rows()[0], {**rows()[1], "level": 2**53}], NOW_US)[0].level == 2**31
