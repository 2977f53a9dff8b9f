"""Bans as rows: what is written is read again, at another time and by another clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slidegate.core import ConfigurationError
from slidegate.core.bans.ban import Ban
from slidegate.core.bans.rows import Bans, from_rows, to_rows
from slidegate.core.bans.strikes import StrikeRecord

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
WALL_US = 1_800_000_000 * SECOND_US
EVE = Ban("user:eve", "why", "abuse", 2, 100 * SECOND_US, 100 * SECOND_US + HOUR_US, WALL_US - 7)
NET = Ban("192.0.2.0/24", "", "ann", 0, 0, None, WALL_US - 100 * SECOND_US)
STRUCK = StrikeRecord(2, 90 * SECOND_US, 95 * SECOND_US, 200 * SECOND_US, ((70 * SECOND_US, 3), (90 * SECOND_US, 1)))


def rows(now_us: int = 100 * SECOND_US) -> list[dict[str, Any]]:
    written = to_rows(Bans([EVE, NET], [("abuse", "user:eve", STRUCK)]), now_us, WALL_US)
    read: list[dict[str, Any]] = json.loads(json.dumps(list(written)))
    return read


BAN, STRIKES = 1, 3
SPOILED = [
    (0, "slidegate", "windows", "not an export of bans of version 3"),
    (0, "written_us", "now", "expected a whole number"),
    (BAN, "ban", "010.0.0.1", "is not an address"),
    (BAN, "reason", 5, "expected text"),
    (BAN, "level", -1, "expected a whole number"),
    (BAN, "made_us", 1.5, "expected a whole number"),
    (BAN, "ends_us", 2**53 + 1, "expected a whole number"),
    (STRIKES, "policy", "a:b", "policy"),
    (STRIKES, "last_us", None, "expected a whole number"),
    (STRIKES, "strikes", 5, "not iterable"),
    (STRIKES, "strikes", [[1, 0]], "expected a whole number"),
    (STRIKES, "strikes", [[1, 1]] * 66, "expected at most 65 strikes, not 66"),
    (STRIKES, "struck", "user:" + "x" * 60, "expected a key of at most 64 bytes"),
    (BAN, "ban", "user:" + "\u00e9" * 30, "expected a key of at most 64 bytes"),
    (BAN, "level", "x" * 100_000, "expected a whole number"),
]


@pytest.mark.parametrize(("place", "field", "value", "named"), SPOILED)
def test_a_row_that_cannot_be_read_is_named(place: int, field: str, value: object, named: str) -> None:
    spoiled = rows()
    spoiled[place][field] = value
    with pytest.raises(ConfigurationError) as caught:
        from_rows(spoiled, 0, WALL_US)
    assert str(caught.value).startswith(f"bans, row {place + 1}: cannot be read: ")
    assert named in str(caught.value)
    assert len(str(caught.value)) < 320


@pytest.mark.parametrize("until_us", [0, 5 * SECOND_US, 90 * SECOND_US])
def test_the_end_of_a_ban_is_written_only_where_clean_time_begins_there(until_us: int) -> None:
    struck = StrikeRecord(1, 90 * SECOND_US, until_us, 95 * SECOND_US, ((90 * SECOND_US, 1),))
    written = list(to_rows(Bans([], [("abuse", "user:eve", struck)]), 100 * SECOND_US, WALL_US))
    assert written[1]["until_us"] is None
    record = from_rows(written, 7, WALL_US).strike_records[0][2]
    assert max(record.last_us, record.until_us) == 7 - 10 * SECOND_US
    assert list(to_rows(Bans([], [("abuse", "user:eve", record)]), 7, WALL_US)) == written


def test_strikes_of_the_future_are_strikes_of_now() -> None:
    dated = rows()
    dated[STRIKES].update(last_us=2**53, until_us=2**53, strikes=[[2**53, 1], [WALL_US, 1]])
    record = from_rows(dated, 7, WALL_US).strike_records[0][2]
    assert [at_us for at_us, _ in record.strikes] == [7, 7]
    assert record.last_us == 7
    assert record.until_us == 7 + 400 * 24 * HOUR_US, "no ban lasts longer"


@pytest.mark.parametrize("place", [0, BAN, STRIKES])
def test_a_row_that_lacks_something_is_named(place: int) -> None:
    for field in rows()[place].keys() - {"ban", "struck"}:  # without one of these, a row is of another kind
        spoiled = rows()
        del spoiled[place][field]
        with pytest.raises(ConfigurationError, match=rf"^bans, row {place + 1}: cannot be read: KeyError\('{field}'\)"):
            from_rows(spoiled, 0, WALL_US)


@pytest.mark.parametrize("row", [5, None, [], "ban", ["ban"], {}])
@pytest.mark.parametrize("place", [0, 2])
def test_what_is_no_row_is_named(row: Any, place: int) -> None:
    spoiled: list[Any] = rows()
    spoiled[place] = row
    with pytest.raises(ConfigurationError, match=f"^bans, row {place + 1}: cannot be read: "):
        from_rows(spoiled, 0, WALL_US)


def test_nothing_at_all_is_not_an_export() -> None:
    with pytest.raises(ConfigurationError, match="there are no rows, not even the header row"):
        from_rows([], 0, WALL_US)
    assert from_rows(rows()[:1], 0, WALL_US) == Bans([], [])
