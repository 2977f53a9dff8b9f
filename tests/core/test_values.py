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

from slidegate.core import AnyLimit, Concurrency, Limit, Networks, Quota
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


def bannable(keys: str, *protected: str, **options: Any) -> str:
    """Return which of some keys a policy may ban by itself."""
    networks = Networks([*protected])
    return " ".join(key for key in keys.split() if may_ban(BanPolicy(**options), key, networks)) or "none"


NAMES = {name: value for module in MODULES for name, value in vars(module).items() if not name.startswith("_")}
NAMES |= {
    **{one.__name__: one for one in (shown, spent, period, bannable, timedelta)},
    **{"EXACT": EXACT, "SLICED": SLICED, "MAX_UNITS": MAX_UNITS},
}


def value_of(expression: str) -> str:
    value = eval(expression, dict(NAMES))
    return value if isinstance(value, str) else repr(value)


def test_what_is_written_becomes_what_it_says(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("values.txt"), ">>> ", value_of)


@pytest.mark.parametrize(
    "one", [Limit(5, "1m"), Quota("7/week", starts="Sunday", name="plan"), Concurrency(4)], ids=str
)
def test_limits_are_copied_and_compared_and_cannot_be_changed(one: AnyLimit) -> None:
    for twin in (copy.copy(one), pickle.loads(pickle.dumps(one))):
        assert (twin, hash(twin), str(twin)) == (one, hash(one), str(one))
    for other in (Limit(6, "1m"), Quota("9/day"), Concurrency(5)):
        assert one != other
    with pytest.raises(AttributeError, match=f"a {type(one).__name__} is immutable; create another one"):
        one.amount = 5
