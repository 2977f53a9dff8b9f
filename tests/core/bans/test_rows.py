"""Bans as rows: an export has their fields as they are, and is read again at any time."""

from __future__ import annotations

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
    st.text(max_size=20).filter(str.isprintable),
    st.sampled_from(["abuse", "ann"]),
    st.integers(0, 2**31),
    moments_us,
    st.none() | moments_us,
)


def rows() -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(json.dumps(to_rows([EVE, NET])))
    return read


@given(st.lists(bans), moments_us)
def test_what_is_exported_is_imported_as_it_was_without_what_is_over(exported: list[Ban], now_us: int) -> None:
    read = json.loads(json.dumps(to_rows(exported)))
    assert [list(row.values()) for row in read[1:]] == [list(ban) for ban in exported]
    assert from_rows(read, now_us) == [ban for ban in exported if not ban.is_over(now_us)]


SPOILED = [
    (0, "slidegate", "windows", "not an export of bans of version 4"),
    (0, "version", 3, "not an export of bans of version 4"),
    (1, "key", "010.0.0.1", "is not an address"),
    (1, "key", "user:" + "x" * 60, "expected a key of at most 64 bytes"),
    (1, "key", "user:" + "\u00e9" * 30, "expected a key of at most 64 bytes"),
    (1, "reason", 5, "expected text"),
    (1, "level", -1, "expected a whole number"),
    (1, "level", True, "expected a whole number"),
    (1, "level", "x" * 100_000, "expected a whole number"),
    (1, "since_us", 1.5, "expected a whole number"),
    (1, "until_us", 2**53 + 1, "expected a whole number"),
]


@pytest.mark.parametrize(("place", "field", "value", "named"), SPOILED)
def test_a_row_that_cannot_be_read_is_named(place: int, field: str, value: object, named: str) -> None:
    spoiled = rows()
    spoiled[place][field] = value
    with pytest.raises(ConfigurationError) as caught:
        from_rows(spoiled, NOW_US)
    assert str(caught.value).startswith(f"bans, row {place + 1}: cannot be read: ")
    assert named in str(caught.value)
    assert len(str(caught.value)) < 320


@pytest.mark.parametrize("place", [0, 1])
def test_a_row_that_lacks_something_is_named(place: int) -> None:
    for field in rows()[place]:
        spoiled = rows()
        del spoiled[place][field]
        with pytest.raises(ConfigurationError, match=rf"^bans, row {place + 1}: cannot be read: KeyError\('{field}'\)"):
            from_rows(spoiled, NOW_US)


@pytest.mark.parametrize("row", [5, None, [], "ban", ["ban"], {}])
@pytest.mark.parametrize("place", [0, 2])
def test_what_is_no_row_is_named(row: Any, place: int) -> None:
    spoiled: list[Any] = rows()
    spoiled[place] = row
    with pytest.raises(ConfigurationError, match=f"^bans, row {place + 1}: cannot be read: "):
        from_rows(spoiled, NOW_US)


def test_nothing_at_all_is_not_an_export() -> None:
    with pytest.raises(ConfigurationError, match="there are no rows, not even the header row"):
        from_rows([], NOW_US)
    assert from_rows(rows()[:1], NOW_US) == []


def test_levels_above_the_largest_are_reduced_so_that_they_can_grow() -> None:
    assert from_rows([rows()[0], {**rows()[1], "level": 2**53}], NOW_US)[0].level == 2**31
