"""A quota is written in few words, and a mistake in them says what to write instead."""

import zoneinfo

import pytest

from slidegate import ConfigurationError, Quota
from slidegate.core import NEVER
from slidegate.core.quotas import QuotaCounter

NEW_YEAR_US = 1_735_689_600_000_000  # 2025-01-01T00:00Z
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


def test_without_a_time_zone_database_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> zoneinfo.ZoneInfo:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(ConfigurationError, match=r"no time zone database to look up 'Asia/Tokyo': pip install tzdata"):
        Quota("5/day", zone="Asia/Tokyo")
    assert Quota("5/day", zone="UTC"), "UTC needs no database"


def counted(quota: Quota, unix_us: int) -> QuotaCounter:
    """Return the counter of a quota at a Unix time."""
    return quota.counter_by(lambda: unix_us)


def test_a_period_ends_in_unix_time() -> None:
    quota, now_us = Quota("5/day"), 50
    counter = counted(quota, NEW_YEAR_US - HOUR_US)
    window, state = counter.spend(b"", now_us, 3)
    ends_us = now_us + HOUR_US
    assert state == (3, ends_us, NEW_YEAR_US, 0), "it leaves by the time of the store, and is found by Unix time"
    assert counter.spend(window, now_us, 3) == (window, (3, ends_us, NEW_YEAR_US, HOUR_US))
    assert counter.spend(window, now_us, 6)[1][3] == NEVER
    assert counter.spend(b"", now_us, 6)[1] == (0, 0, 0, NEVER)
    assert quota.expires_us(window) == NEW_YEAR_US + HOUR_US, "a clock that is set back by an hour still finds it"
