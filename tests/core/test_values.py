"""What users write, and what becomes of it: values.txt has each expression with its value, as a reader would say it."""

import copy
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from struct import iter_unpack, unpack
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from slidegate.core import (
    AnyLimit,
    Bucket,
    Concurrency,
    Decision,
    Limit,
    Networks,
    Quota,
    Reason,
    parse_address,
    parse_limits,
)
from slidegate.core.addresses import format_network
from slidegate.core.bans.policy import BanPolicy, may_ban
from slidegate.core.calendar import Anchor, Calendar, Unit
from slidegate.core.ring import MAX_UNITS

from .test_ring import EXACT, SLICED, spent

MODULES = [import_module(f"slidegate.core{name}") for name in ("", ".addresses", ".errors", ".bans.policy")]


def shown(ring: bytes) -> str:
    """Return the numbers of a ring: its units, those of the newest moment, that moment, the oldest, and the others."""
    return "empty" if not ring else f"{unpack('<IIqq', ring[:24])} {[*iter_unpack('<qI', ring[24:])]}"


def period(unit: Unit, zone: str, at: str, **anchor: int) -> str:
    """Return when the period of a moment starts and ends, by the clocks of its zone."""
    at_us = round(datetime.fromisoformat(at).timestamp() * 1e6)
    found = Calendar(unit, Anchor(**anchor), ZoneInfo(zone)).period_at(at_us)
    times = (datetime.fromtimestamp(us / 1e6, ZoneInfo(zone)).isoformat() for us in (found.start_us, found.end_us))
    return " to ".join(times)


def addresses(texts: str) -> str:
    """Return the addresses that some texts spell, each once."""
    found = dict.fromkeys(map(parse_address, texts.split(",")))
    return ", ".join("none" if one is None else format_network(*one, 128 if one[0] == 6 else 32) for one in found)


def tightest(costs: tuple[int, int], spent: tuple[int, int]) -> str:
    """Return which of 60 requests and 1,000 tokens a minute the header fields show, for so many that are spent."""
    limits = {"requests": "60/minute", "tokens": "1000/minute"}
    checks = [(Bucket(name, parse_limits(limits[name])), "ann", cost) for name, cost in zip(limits, costs, strict=True)]
    readings = [(units, 9 - number, 0, 0) for number, units in enumerate(spent)]
    found = {Decision(True, Reason.OK, 0, checks[::way], readings[::way]).binding.name for way in (1, -1)}
    return " or ".join(sorted(found))


def bannable(keys: str, *protected: str, **options: Any) -> str:
    """Return which of some keys a policy may ban by itself."""
    networks = Networks([*protected])
    return " ".join(key for key in keys.split() if may_ban(BanPolicy(**options), key, networks)) or "none"


NAMES = {name: value for module in MODULES for name, value in vars(module).items() if not name.startswith("_")}
NAMES |= {
    **{one.__name__: one for one in (shown, spent, period, addresses, tightest, bannable, timedelta)},
    **{"EXACT": EXACT, "SLICED": SLICED, "MAX_UNITS": MAX_UNITS},
}


def value_of(expression: str) -> str:
    value = eval(expression, dict(NAMES))
    return value if isinstance(value, str) else repr(value)


def test_what_is_written_becomes_what_it_says(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("values.txt"), ">>> ", value_of)


@pytest.mark.parametrize(
    "one",
    [
        Limit(5, "1m", resolution=10, name="burst"),
        Quota("7/month", zone="Europe/Berlin", starts=15, name="plan"),
        Concurrency(4, name="permits"),
    ],
    ids=str,
)
def test_limits_are_copied_and_compared_and_only_their_own_amount_changes(one: AnyLimit) -> None:
    own = one.own()
    for twin in (copy.copy(one), pickle.loads(pickle.dumps(one)), own):
        assert (twin, hash(twin), str(twin)) == (one, hash(one), str(one))
    own.become(9)
    assert (own.amount, own.name, own.same_window) == (9, one.name, one.same_window)
    for other in (own, Limit(5, "1m", resolution=10), Quota("9/day"), Concurrency(4)):
        assert one != other
    own.become(one.amount)
    assert own == one
    with pytest.raises(AttributeError, match=f"a {type(one).__name__} is immutable; create another one"):
        one.amount = 5
