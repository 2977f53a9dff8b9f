"""Bans as rows of plain values, for export from one store and import into another.

Times in rows are Unix microseconds. An import shifts them by the time that has passed since the export, never by a
negative one: if the clock was set back in between, a ban lasts as long as it had left, and never longer. Strikes that
would be in the future are dated at the time of the import, because otherwise they would count for too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import ConfigurationError, quoted
from ..limits import MAX_WINDOW_US, check_name
from ..logs import escaped
from .ban import MAX_KEY_BYTES, MAX_REASON, Ban, ban_key, clean_reason
from .policy import MAX_EXACT
from .strikes import StrikeRecord

Row: TypeAlias = Mapping[str, Any]

_VERSION: Final = 3
_MOST: Final = 2**53
_MAX_LEVEL: Final = 2**31
"""Higher levels are reduced to this one on import, so that they can still be incremented."""


class Bans(NamedTuple):
    """The bans and strike records of a store.

    Attributes:
        bans: The bans in force.
        strike_records: The records, as (policy, key, record).
    """

    bans: list[Ban]
    strike_records: list[tuple[str, str, StrikeRecord]]


def to_rows(stored: Bans, now_us: int, wall_us: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of an export at `now_us` in the store's time, which is `wall_us` in Unix time."""
    ahead_us = wall_us - now_us
    yield {"slidegate": "bans", "version": _VERSION, "written_us": wall_us}
    for ban in stored.bans:
        yield {
            "ban": ban.key,
            "reason": ban.reason,
            "by": ban.by,
            "level": ban.level,
            "made_us": ban.made_us + ahead_us,
            "ends_us": None if ban.ends_us is None else ban.ends_us + ahead_us,
            "since_us": ban.wall_us,
        }
    for policy, key, record in stored.strike_records:
        yield {
            "struck": key,
            "policy": policy,
            "level": record.level,
            "last_us": record.last_us + ahead_us,
            "until_us": record.until_us + ahead_us if record.until_us > record.last_us else None,
            "over_us": record.over_us + ahead_us,
            "strikes": [[at_us + ahead_us, weight] for at_us, weight in record.strikes],
        }


def from_rows(rows: Iterable[Row], now_us: int, wall_us: int) -> Bans:
    """Parse the rows of an export, perhaps for another store, at `now_us`; expired bans are omitted.

    Raises:
        ConfigurationError: A row is invalid; the message has its number, counted from 1.
    """
    stored = Bans([], [])
    behind_us = 0
    number = 0
    for number, row in enumerate(rows, start=1):
        try:
            if number == 1:
                behind_us = now_us - max(wall_us, _written_us(row))
            elif "ban" in row:
                ban = _ban(row, behind_us)
                if not ban.is_over(now_us):
                    stored.bans.append(ban)
            else:
                stored.strike_records.append(_strike_record(row, behind_us, now_us))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"bans, row {number}: cannot be read: {escaped(repr(error), MAX_REASON)}"
            ) from None
    if not number:
        raise ConfigurationError("bans: there are no rows, not even the header row of an export")
    return stored


def _written_us(row: Row) -> int:
    if row["slidegate"] != "bans" or row["version"] != _VERSION:
        raise ValueError(f"not an export of bans of version {_VERSION}")
    return _whole(row["written_us"])


def _ban(row: Row, behind_us: int) -> Ban:
    ends_us = None if row["ends_us"] is None else _whole(row["ends_us"]) + behind_us
    made_us = _whole(row["made_us"]) + behind_us
    return Ban(
        _key(row["ban"]),
        clean_reason(row["reason"]),
        clean_reason(row["by"]),
        min(_whole(row["level"], 0), _MAX_LEVEL),
        made_us,
        ends_us,
        _whole(row["since_us"]),
    )


def _strike_record(row: Row, behind_us: int, now_us: int) -> tuple[str, str, StrikeRecord]:
    strikes = [(min(_whole(at_us) + behind_us, now_us), _whole(weight, 1)) for at_us, weight in row["strikes"]]
    if len(strikes) > MAX_EXACT + 1:
        raise ValueError(f"expected at most {MAX_EXACT + 1} strikes, not {len(strikes)}")
    last_us = min(_whole(row["last_us"]) + behind_us, now_us)
    # The end of a ban in force is in the future: clean time starts there. No ban lasts longer than MAX_WINDOW_US.
    until_us = last_us if row["until_us"] is None else min(_whole(row["until_us"]) + behind_us, now_us + MAX_WINDOW_US)
    over_us = _whole(row["over_us"]) + behind_us
    record = StrikeRecord(min(_whole(row["level"], 0), _MAX_LEVEL), last_us, until_us, over_us, tuple(strikes))
    return check_name(row["policy"], "policy"), _key(row["struck"]), record


def _whole(value: object, least: int = -_MOST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise ValueError(f"expected a whole number from {least} to {_MOST}, not {quoted(value)}")
    return value


def _key(value: object) -> str:
    # Stores replace longer keys by digests. Handwritten rows cannot contain these, because they depend on a secret.
    key = ban_key(value)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"expected a key of at most {MAX_KEY_BYTES} bytes, not {quoted(key)}")
    return key
