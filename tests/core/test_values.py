"""What users write, and what becomes of it; limits, quotas, calendars, permits and the memo, against plain models.

values.txt has each expression with its value, as a reader would say it; ``x = ...`` is kept.
"""

import re
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Decision, Limit, MemoryStore, Quota, parse_limits
from slidegate.core import NEVER, Bucket, Networks, Reason, WindowState, parse_address
from slidegate.core.addresses import format_network, parse_network
from slidegate.core.bans.policy import may_ban
from slidegate.core.calendar import WEEKDAYS, Calendar, read_start
from slidegate.core.counters import PermitCounter
from slidegate.core.limits import MAX_AMOUNT, MAX_WINDOW_US
from slidegate.core.memo import key_bytes, remember
from slidegate.core.ring import MAX_UNITS
from slidegate.testing import FakeClock

from ..contract.programs import DAY_US, MINUTE_US, SECOND_US
from ..turns import interrupted

ADDRESSES = st.ip_addresses().map(str) | st.ip_addresses(network="203.0.113.0/24").map(str)


@given(ADDRESSES, st.text("0123456789/ ,ab.:", min_size=1, max_size=12))
@example("5.34.242.0", "24 1")
@example("131.0.72.0", "222400:cb00::/32")
def test_a_hint_about_a_network_names_no_other_one(host: str, length: str) -> None:
    text = f"{host}/{length}"
    try:
        parse_network(text, strict=False)
    except ConfigurationError as error:
        named = map(parse_address, re.findall(r"[^\s,;'/]+", str(error).replace(repr(text), "")))
        assert {*named} <= {None, parse_address("192.0.2.0"), parse_address("0.0.0.0"), parse_address("::")}


ROOMS = ("", ".addresses", ".bans.ban", ".bans.policy", ".bans.rows", ".bans.strikes", ".errors", ".logs")
MODULES = [import_module(f"slidegate.core{room}") for room in ROOMS]


def addresses(texts: str) -> str:
    found = dict.fromkeys(map(parse_address, texts.split(",")))
    return ", ".join("none" if one is None else format_network(*one, 128 if one[0] == 6 else 32) for one in found)


def tightest(costs: tuple[int, int], spent: tuple[int, int]) -> str:
    """Return which of 60 requests and 1,000 tokens a minute the header fields show, for so many that are spent."""
    limits = {"requests": "60/minute", "tokens": "1000/minute"}
    checks = [(Bucket(name, parse_limits(limits[name])), "ann", cost) for name, cost in zip(limits, costs, strict=True)]
    readings = [(units, 9 - number, 0, 0) for number, units in enumerate(spent)]
    found = {Decision(True, Reason.OK, 0, checks[::way], readings[::way]).binding.name for way in (1, -1)}
    return " or ".join(sorted(found))


def decided(limits: str, *readings: WindowState, cost: int = 1, **more: Any) -> Decision:
    """Return the decision about a cost, 1,000 s after the store's clock began, that some readings of windows make."""
    wait_us = readings[0][3]
    reason = Reason.TOO_LARGE if wait_us == NEVER else Reason.LIMITED if wait_us else Reason.OK
    checks = [(Bucket("api", parse_limits(limits)), "ann", cost)]
    return Decision(not wait_us, reason, 1_000_000_000, checks, readings, **more)


def parts(one: object, names: str) -> str:
    return ", ".join(f"{name}={getattr(one, name)}" for name in names.split())


def bannable(keys: str, *protected: str, **options: Any) -> str:
    networks = Networks([*protected])
    return " ".join(key for key in keys.split() if may_ban(BanPolicy(**options), key, [networks])) or "none"


A_DAY = Quota("5/day").counter_by(lambda: 1_735_686_000_000_000)
"""An hour before the new year of 2025."""
NAMES = {name: value for module in MODULES for name, value in vars(module).items() if not name.startswith("_")}
NAMES |= {
    **{one.__name__: one for one in (addresses, tightest, decided, parts, bannable)},
    **{one.__name__: one for one in (timedelta, datetime, FakeClock, MemoryStore, remember, key_bytes)},
    **{"MAX_UNITS": MAX_UNITS, "A_DAY": A_DAY, "PermitCounter": PermitCounter},
}


def value_of(expression: str) -> str:
    try:
        if (kept := re.match(r"(\w+) = ", expression)) is not None:
            NAMES[kept[1]] = eval(expression[kept.end() :], NAMES)
            return ""
        value = eval(expression, NAMES)
    except (AttributeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return value if isinstance(value, str) else repr(value)


def test_what_is_written_becomes_what_it_says(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("values.txt"), ">>> ", value_of)


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


LETTERS = st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters=":;")
LIMIT_NAMES = st.text(LETTERS, min_size=1, max_size=64).filter(lambda name: name == name.strip())


@st.composite
def any_limits(draw: st.DrawFn) -> Limit:
    window_us = draw(st.one_of(st.sampled_from([1_000, MINUTE_US, DAY_US]), st.integers(1_000, MAX_WINDOW_US)))
    return Limit(
        draw(st.integers(1, MAX_AMOUNT)),
        timedelta(microseconds=window_us),
        resolution=draw(st.integers(1, min(3_600, window_us // 10))),
        name=draw(st.none() | LIMIT_NAMES),
    )


@given(st.lists(any_limits(), min_size=1, max_size=4, unique_by=lambda limit: limit.same_window))
def test_a_written_set_reads_back_as_the_same(limits: list[Limit]) -> None:
    assert list(parse_limits("; ".join(map(str, limits)))) == limits


@example(Limit(5, "1m"), Limit(5, "1m", name="api"))
@given(any_limits(), any_limits())
def test_equal_limits_hash_equal(one: Limit, other: Limit) -> None:
    again = Limit(one.amount, timedelta(microseconds=one.window_us), resolution=one.resolution, name=one.name)
    assert one == again
    assert hash(one) == hash(again)
    same = (one.amount, one.same_window, one.name) == (other.amount, other.same_window, other.name)
    assert (one == other) is same


def test_one_hit_takes_little_and_many_take_what_the_resolution_allows() -> None:
    exact, sliced = Limit(3, "10s"), Limit(100, "10s", resolution=10)
    ring, _ = sliced.counter.charge(b"", 5, 1)
    assert len(ring) == 24
    for step in range(10_000):
        ring, _ = sliced.counter.charge(ring, step * 100_000, 1)
    assert len(ring) <= 24 + 12 * 11
    for step in range(10_000):  # debts of an exact limit are moments without end
        ring, _ = exact.counter.charge(ring, 10**9 + step, 1)
    assert len(ring) <= 24 + 12 * 2 * exact.resolution
    assert exact.counter.spend(ring, 10**9 + 10_000, 1)[1][3] == 10 * SECOND_US - 3


def test_without_a_time_zone_database_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> zoneinfo.ZoneInfo:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    with pytest.raises(ConfigurationError, match=r"not 'Asia/Tokyo'; .*: pip install tzdata"):
        Quota("5/day", zone="Asia/Tokyo")
    assert Quota("5/day", zone="UTC"), "UTC needs no database"


@pytest.mark.parametrize("first", ["hit", "change"])
def test_a_hit_goes_by_the_amount_before_a_change_or_after_it_wherever_it_comes(first: str) -> None:
    """Also where the amount crosses the resolution, so that slices become moments."""
    sliced, exact = (Limit(amount, "10s", resolution=2).counter for amount in (4, 2))
    window, _ = sliced.spend(b"", 12 * SECOND_US, 2)
    found = list[object]()

    def begin() -> list[Callable[[], object]]:
        limit = Limit(4, "10s", resolution=2).mutable_copy()
        acts = [lambda: found.append(limit.counter.spend(window, 16 * SECOND_US, 1)), lambda: limit.become(2)]
        return acts if first == "hit" else acts[::-1]

    for point in interrupted(begin, ["core/ring.py", "core/limits.py"]):
        assert found.pop() in [one.spend(window, 16 * SECOND_US, 1) for one in (sliced, exact)], point


@pytest.mark.parametrize("first", ["the swap", "the look"])
def test_no_look_finds_half_of_networks_that_a_file_has_swapped(first: str) -> None:
    versions = [Networks(texts) for texts in (["11.0.0.0/25"], ["192.0.2.1", "11.0.0.0/25", "2001:db8::/128"])]
    found = list[object]()

    def begin() -> list[Callable[[], object]]:
        listed = Networks.of_ranges(versions[0].ranges())
        acts = [lambda: listed.become(versions[1]), lambda: found.append([*listed.ranges()])]
        return acts if first == "the swap" else acts[::-1]

    for point in interrupted(begin, ["core/networks.py"]):
        assert found.pop() in [[*one.ranges()] for one in versions], point


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


def starts_on(unit: str, start: datetime, day: date) -> bool:
    """Say whether a period starts on a day, as a calendar on paper shows it."""
    last_of_month = (day + DAY).month != day.month
    on_day = day.day == start.day or (last_of_month and day.day < start.day)
    return {
        "day": True,
        "week": day.weekday() == start.weekday(),
        "month": on_day,
        "year": day.month == start.month and on_day,
    }[unit]


def moment_of(day: date, time_of_day: time, zone: tzinfo) -> datetime:
    """Return when the clocks of a zone first show a time of day, by trying the offsets of the days around it."""
    naive = datetime.combine(day, time_of_day)
    offsets = []
    for around in (-DAY, DAY):
        offset = (naive + around).replace(tzinfo=UTC).astimezone(zone).utcoffset()
        offsets.append(offset)
    moments = [(naive - offset).replace(tzinfo=UTC) for offset in offsets]
    shown = [moment for moment in moments if moment.astimezone(zone).replace(tzinfo=None) == naive]
    return min(shown) if shown else moments[0]  # in a gap: by the offset before it


def starts_around(unit: str, start: datetime, zone: tzinfo, moment: datetime) -> Iterator[datetime]:
    """Yield the starts of periods for more than a year before and two after a moment, in order."""
    day = (moment - 400 * DAY).astimezone(zone).date()
    for _ in range(1_300):
        if starts_on(unit, start, day):
            yield moment_of(day, start.time(), zone)
        day += DAY


MINUTES = st.integers(0, 1439) | st.sampled_from((0, 60, 120, 150, 180))
STARTS = {
    "day": MINUTES.map(lambda minute: f"{minute // 60:02}:{minute % 60:02}"),
    "week": st.sampled_from(WEEKDAYS),
    "month": st.integers(1, 31),
    "year": st.dates(date(2024, 1, 1), date(2024, 12, 31)).map("{:%m-%d}".format),
}
UNITS = st.sampled_from([*STARTS]).flatmap(
    lambda unit: STARTS[unit].map(lambda text: (unit, read_start(unit, text)[0]))
)
# Around the changes of clocks, of months, and where Apia skipped a day.
DAYS = ("2024-03-31", "2024-10-27", "2024-02-29", "2023-12-31", "2011-12-30", "2018-11-04")
NEAR = st.builds(
    lambda day, span: datetime.fromisoformat(day).replace(tzinfo=UTC) + span,
    st.sampled_from(DAYS),
    st.timedeltas(-2 * DAY, 2 * DAY),
)
MOMENTS = NEAR | st.datetimes(datetime(1975, 1, 1), datetime(2080, 1, 1), timezones=st.just(UTC))


@given(UNITS, st.sampled_from(ZONES.split()), MOMENTS)
def test_periods_are_those_of_the_model(made: tuple[str, datetime], zone_name: str, moment: datetime) -> None:
    (unit, start), zone = made, ZoneInfo(zone_name)
    starts = sorted(set(starts_around(unit, start, zone, moment)))
    index = max(number for number, start in enumerate(starts) if start <= moment)
    expected = tuple(map(unix_us, starts[index : index + 3]))
    calendar = Calendar(unit, start, zone)  # type: ignore[arg-type]
    assert calendar.period_at(unix_us(moment)) == expected
    # A calendar remembers its last period; its ends belong to the neighbours.
    start_us, end_us, _ = expected
    found = [calendar.period_at(at_us).start_us for at_us in (start_us, end_us - 1, end_us)]
    assert found == [start_us, start_us, end_us]
    assert calendar.period_at(start_us - 1).end_us == start_us
