"""What users write, and what becomes of it: values.txt has each expression with its value, as a reader would say it.

``x = ...`` is kept. And the memo of questions.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from struct import iter_unpack, unpack
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import BanPolicy, Decision, MemoryStore, Quota, parse_limits
from slidegate.core import NEVER, Bucket, Networks, Reason, WindowState, parse_address
from slidegate.core.addresses import format_network
from slidegate.core.bans.policy import may_ban
from slidegate.core.calendar import Anchor, Calendar, Unit
from slidegate.core.memo import key_bytes, remember
from slidegate.core.ring import MAX_UNITS, expires_us
from slidegate.testing import FakeClock

from .test_limits import EXACT, SLICED, spent

ROOMS = ("", ".addresses", ".bans.ban", ".bans.policy", ".bans.strikes", ".errors", ".logs", ".windows")
MODULES = [import_module(f"slidegate.core{room}") for room in ROOMS]


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


def decided(limits: str, *readings: WindowState, cost: int = 1, **more: Any) -> Decision:
    """Return the decision about a cost, 1,000 s after the store's clock began, that some readings of windows make."""
    wait_us = readings[0][3]
    reason = Reason.TOO_LARGE if wait_us == NEVER else Reason.LIMITED if wait_us else Reason.OK
    checks = [(Bucket("api", parse_limits(limits)), "ann", cost)]
    return Decision(not wait_us, reason, 1_000_000_000, checks, readings, **more)


def parts(one: object, names: str) -> str:
    """Return some parts of an object, by their names."""
    return ", ".join(f"{name}={getattr(one, name)}" for name in names.split())


def bannable(keys: str, *protected: str, **options: Any) -> str:
    """Return which of some keys a policy may ban by itself."""
    networks = Networks([*protected])
    return " ".join(key for key in keys.split() if may_ban(BanPolicy(**options), key, networks)) or "none"


A_DAY = Quota("5/day").counter_by(lambda: 1_735_686_000_000_000)
"""An hour before the new year of 2025."""
NAMES = {name: value for module in MODULES for name, value in vars(module).items() if not name.startswith("_")}
NAMES |= {
    **{one.__name__: one for one in (shown, spent, period, addresses, tightest, decided, parts, bannable)},
    **{one.__name__: one for one in (timedelta, datetime, FakeClock, MemoryStore, remember, key_bytes)},
    **{"EXACT": EXACT, "SLICED": SLICED, "MAX_UNITS": MAX_UNITS, "expires_us": expires_us, "A_DAY": A_DAY},
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
