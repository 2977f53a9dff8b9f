"""A period is the one that a calendar on the wall shows: checked against a slow model, day by day."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core.calendar import Anchor, Calendar

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)
DAY = timedelta(days=1)
# Half hours of daylight saving, no whole hours, changes at midnight, a day that was skipped, and none at all.
ZONES = (
    "UTC Europe/Berlin America/New_York Australia/Lord_Howe Asia/Kathmandu America/Sao_Paulo Pacific/Apia "
    "Africa/Casablanca America/Havana"
)


def unix_us(moment: datetime) -> int:
    return (moment - EPOCH) // US


def starts_on(unit: str, anchor: Anchor, day: date) -> bool:
    """Say whether a period starts on a day, as somebody with a calendar would."""
    last_of_month = (day + DAY).month != day.month
    on_day = day.day == anchor.day or (last_of_month and day.day < anchor.day)
    return {
        "day": True,
        "week": day.weekday() == anchor.weekday,
        "month": on_day,
        "year": day.month == anchor.month and on_day,
    }[unit]


def moment_of(day: date, minute: int, zone: tzinfo) -> datetime:
    """Return when the clocks of a zone first show a time of day, by trying the offsets of the days around it."""
    naive = datetime(day.year, day.month, day.day) + timedelta(minutes=minute)
    offsets = []
    for around in (-DAY, DAY):
        offset = (naive + around).replace(tzinfo=UTC).astimezone(zone).utcoffset()
        offsets.append(offset)
    moments = [(naive - offset).replace(tzinfo=UTC) for offset in offsets]
    shown = [moment for moment in moments if moment.astimezone(zone).replace(tzinfo=None) == naive]
    return min(shown) if shown else moments[0]  # in a gap: by the offset before it


def starts_around(unit: str, anchor: Anchor, zone: tzinfo, moment: datetime) -> Iterator[datetime]:
    """Yield the starts of periods for more than a year before and two after a moment, in order."""
    day = (moment - 400 * DAY).astimezone(zone).date()
    for _ in range(1_300):
        if starts_on(unit, anchor, day):
            yield moment_of(day, anchor.minute, zone)
        day += DAY


ANCHORS: dict[str, st.SearchStrategy[Anchor]] = {
    "day": (st.integers(0, 1439) | st.sampled_from((0, 60, 120, 150, 180))).map(lambda minute: Anchor(minute=minute)),
    "week": st.integers(0, 6).map(lambda weekday: Anchor(weekday=weekday)),
    "month": st.integers(1, 31).map(lambda day: Anchor(day=day)),
    "year": st.dates(date(2024, 1, 1), date(2024, 12, 31)).map(lambda day: Anchor(day=day.day, month=day.month)),
}
UNITS = st.sampled_from([*ANCHORS]).flatmap(lambda unit: st.tuples(st.just(unit), ANCHORS[unit]))
# Around the changes of clocks, of months, and where Apia skipped a day.
DAYS = ("2024-03-31", "2024-10-27", "2024-02-29", "2023-12-31", "2011-12-30", "2018-11-04")
NEAR = st.builds(
    lambda day, span: datetime.fromisoformat(day).replace(tzinfo=UTC) + span,
    st.sampled_from(DAYS),
    st.timedeltas(-2 * DAY, 2 * DAY),
)
MOMENTS = NEAR | st.datetimes(datetime(1975, 1, 1), datetime(2080, 1, 1), timezones=st.just(UTC))


@given(UNITS, st.sampled_from(ZONES.split()), MOMENTS)
def test_periods_are_those_of_the_model(made: tuple[str, Anchor], zone_name: str, moment: datetime) -> None:
    (unit, anchor), zone = made, ZoneInfo(zone_name)
    starts = sorted(set(starts_around(unit, anchor, zone, moment)))
    index = max(number for number, start in enumerate(starts) if start <= moment)
    expected = tuple(map(unix_us, starts[index : index + 3]))
    calendar = Calendar(unit, anchor, zone)  # type: ignore[arg-type]
    assert calendar.period_at(unix_us(moment)) == expected
    # A calendar remembers its last period; its ends belong to the neighbours.
    start_us, end_us, _ = expected
    found = [calendar.period_at(at_us).start_us for at_us in (start_us, end_us - 1, end_us)]
    assert found == [start_us, start_us, end_us]
    assert calendar.period_at(start_us - 1).end_us == start_us
