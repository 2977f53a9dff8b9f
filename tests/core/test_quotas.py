"""A quota is written in few words, and a mistake in them says what to write instead."""

from __future__ import annotations

import pickle
import zoneinfo

import pytest

from slidegate import ConfigurationError, Limit, Quota, parse_limits
from slidegate.core import NEVER, Bucket

NEW_YEAR_US = 1_735_689_600_000_000  # 2025-01-01T00:00Z
HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("quota", "spelled"),
    [
        (Quota("10000/month"), "10000/month from 1 in UTC"),
        (Quota("5 per day", starts="06:30", zone="Asia/Tokyo"), "5/day from 06:30 in Asia/Tokyo"),
        (Quota(" 7/WEEK ", starts="Sunday", name="plan"), "plan: 7/week from sunday in UTC"),
        (Quota("1/year", starts="02-29"), "1/year from 02-29 in UTC"),
        (Quota("3/month", starts="31"), "3/month from 31 in UTC"),
    ],
)
def test_a_quota_is_spelled_and_pickled_and_compared(quota: Quota, spelled: str) -> None:
    assert (str(quota), repr(quota)) == (spelled, f"<Quota {spelled}>")
    again = pickle.loads(pickle.dumps(quota))
    assert (again, hash(again), str(again)) == (quota, hash(quota), spelled)
    assert quota != Quota("9/day")
    assert quota != Limit(5, "1m")


def test_without_a_time_zone_database_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> zoneinfo.ZoneInfo:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(ConfigurationError, match=r"no time zone database to look up 'Asia/Tokyo': pip install tzdata"):
        Quota("5/day", zone="Asia/Tokyo")
    assert Quota("5/day", zone="UTC"), "UTC needs no database"


def test_quotas_stand_beside_limits_in_a_set() -> None:
    quota = Quota("10000/month")
    assert parse_limits(["10/second; 100/minute", quota]) == (Limit(10, "1s"), Limit(100, "1m"), quota)
    assert parse_limits(quota) == (quota,)
    with pytest.raises(ConfigurationError, match="keep the smaller one"):
        parse_limits([quota, Quota("20000/month")])


def test_quotas_of_a_rule_are_told_apart_by_their_periods() -> None:
    limits = parse_limits(["100/minute", Quota("5/day"), Quota("9/month"), Quota("9/month", zone="Asia/Tokyo")])
    assert Bucket("api", limits).names == ("api-60", "api-day", "api-month", "api-month-2")
    assert [(limit.window_s, limit.said) for limit in limits[:2]] == [(60, "100 per 1m"), (None, "5 per day")]


def test_a_period_is_counted_until_its_end_in_the_time_of_the_store() -> None:
    quota, hour_us = Quota("5/day"), 3_600_000_000
    window = quota.enter(b"", NEW_YEAR_US - 50, NEW_YEAR_US - hour_us)
    window, state = quota.spend(window, NEW_YEAR_US - 50, 3)
    ends_us = NEW_YEAR_US - 50 + hour_us
    assert state == (3, ends_us, ends_us, 0)
    assert quota.spend(window, NEW_YEAR_US, 3) == (window, (3, ends_us, ends_us, hour_us - 50))
    assert quota.spend(window, NEW_YEAR_US, 6)[1][3] == NEVER
    assert quota.enter(window, NEW_YEAR_US, NEW_YEAR_US - 1)[8:] != window[8:], "how far ahead it is, is looked at anew"
    assert quota.state(quota.enter(window, ends_us, NEW_YEAR_US))[0] == 0
    assert quota.expires_us(window) == ends_us + HOUR_US, "a clock that is set back by an hour still finds it"


def test_a_charge_of_before_a_reset_takes_no_later_units_with_it() -> None:
    quota = Quota("5/day")
    before, _ = quota.spend(quota.enter(b"", 100, NEW_YEAR_US), 100, 2)
    window, _ = quota.spend(quota.reset(before, 200), 300, 2)
    for spent_us in (100, 200):
        assert quota.remove(window, 400, spent_us, quota.mark(before), 2) is None
    left = quota.remove(window, 400, 300, quota.mark(window), 2)
    assert left is not None
    assert quota.state(left)[0] == 0
