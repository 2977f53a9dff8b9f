"""Promises about full stores, stores that fail, quotas and places: code that breaks one on purpose fails its test.

Mutations of windows, demands and bans are in `core/test_mutations.py`; `docs/concepts/proof.md` names both.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections.abc import Callable
from typing import NamedTuple

import pytest

import slidegate.core.windows.periods
import slidegate.core.windows.places
import slidegate.limiter.failsafe
import slidegate.stores.memory.tables
from slidegate import MemoryStore
from slidegate.testing import FakeClock
from slidegate.testing.contract import StoreContract
from slidegate.testing.contract.quota_contract import unix_us

from .core.test_mutations import Mutation, mutated
from .limiter import test_failures as failures
from .stores.memory import test_store as memory

TABLES, FAILSAFE = slidegate.stores.memory.tables, slidegate.limiter.failsafe
PERIODS, PLACES = slidegate.core.windows.periods, slidegate.core.windows.places
HANG_S = 0.3
"""How long a question is waited for that nobody will ever answer."""


class InMemory(StoreContract):
    """The contract, on a memory store."""

    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


def play_quotas() -> None:
    """Play random hits, debts, refunds and steps of the clock to a store and the model of quotas."""
    for seed in range(30):
        asyncio.run(InMemory()._play_quotas(random.Random(seed), unix_us("2101-03-26T20:00:00")))


def play_places() -> None:
    """Take and hand back places at random, beside a plain count."""
    InMemory().test_never_more_places_than_there_are_in_any_order_of_events()


class Broken(NamedTuple):
    """A mutation of one class, and the test that has to fail."""

    mutation: Mutation
    cls: str
    scene: Callable[[], None]


def broken(what: str, module: types.ModuleType, cls: str, edit: tuple[str, str], scene: Callable[[], None]) -> Broken:
    return Broken(Mutation(what, module, (edit,)), cls, scene)


ALL = [
    broken(
        "a full store forgets strangers instead of counting them together",
        TABLES,
        "Table",
        ("cell = self.cells.get(number)\n        if cell", "cell = None\n        if cell"),
        memory.test_a_flood_of_one_hit_keys_stays_within_max_keys_and_is_told,
    ),
    broken(
        "a sweep lets live windows go",
        TABLES,
        "Table",
        ("return now_us < newest_of(row) + self.limit.span_us", "return False"),
        memory.test_a_sweep_lets_no_live_window_go,
    ),
    broken(
        "windows that are over stay",
        TABLES,
        "Table",
        ("return window.spent > 0 and now_us < window.newest_us + self.limit.span_us", "return True"),
        memory.test_a_store_that_nobody_uses_any_more_is_empty_but_for_the_last_key,
    ),
    broken(
        "a store that hangs is waited for",
        FAILSAFE,
        "Failsafe",
        ("decision = await within(answer, self._deadline_s)", "decision = await answer"),
        lambda: asyncio.run(failures.test_no_request_waits_longer_than_the_deadline_for_a_store_that_hangs()),
    ),
    broken(
        "nothing is counted here while the store is away",
        FAILSAFE,
        "Failsafe",
        (
            'if self.on_error != "local":\n            allowed = self.on_error == "allow"',
            "if True:\n            allowed = True",
        ),
        lambda: asyncio.run(failures.test_local_counts_in_this_process_while_the_store_is_away(OSError("gone"), True)),
    ),
    broken(
        "recovery is a burst",
        FAILSAFE,
        "Failsafe",
        ("if local is None or not shared.allowed:", "if True:"),
        lambda: asyncio.run(failures.test_after_a_failure_a_request_passes_both_so_recovery_is_no_burst(True)),
    ),
    broken(
        "a store that denies lets pass",
        FAILSAFE,
        "Failsafe",
        ('allowed = self.on_error == "allow" or', 'allowed = self.on_error == "deny" or'),
        lambda: asyncio.run(failures.test_deny_refuses_everything_and_says_when_to_try_again(True)),
    ),
    broken("a quota never starts anew", PERIODS, "PeriodCount", ("            self.spent = 0\n", ""), play_quotas),
    broken(
        "a quota starts anew in an earlier period",
        PERIODS,
        "PeriodCount",
        ("if end_us > self.end_us:", "if end_us != self.end_us:"),
        InMemory().test_a_clock_that_is_set_back_goes_on_counting_in_the_newer_period,
    ),
    broken(
        "a quota lets one unit more through",
        PERIODS,
        "PeriodCount",
        ("if self.spent <= room:", "if self.spent <= room + 1:"),
        play_quotas,
    ),
    broken(
        "a quota says to come back a microsecond early",
        PERIODS,
        "PeriodCount",
        ("else self.leaves_us - now_us", "else self.leaves_us - now_us - 1"),
        play_quotas,
    ),
    broken(
        "units go back into a later period",
        PERIODS,
        "PeriodCount",
        ("if spent_us != self.end_us or not", "if not"),
        InMemory().test_units_are_handed_back_within_their_period_alone,
    ),
    broken(
        "one place too many",
        PLACES,
        "Places",
        ("0 if self.spent <= room else", "0 if self.spent <= room + 1 else"),
        play_places,
    ),
    broken(
        "a place that is handed back stays taken", PLACES, "Places", ("        self.spent -= units\n", ""), play_places
    ),
    broken(
        "a request takes no place",
        PLACES,
        "Places",
        ("            self.spent += cost\n", "            pass\n"),
        play_places,
    ),
]


def break_class(row: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the methods of a mutated class in the place of the whole ones."""
    made, whole = mutated(row.mutation), getattr(row.mutation.module, row.cls)
    for name, value in vars(getattr(made, row.cls)).items():
        if isinstance(value, types.FunctionType):
            monkeypatch.setattr(whole, name, value)
    setattr(made, row.cls, whole)  # what it makes is of the class that everybody knows


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.mutation.what)
def test_a_broken_promise_fails_its_test(row: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LONG", HANG_S)
    break_class(row, monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        row.scene()


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.mutation.what)
def test_the_same_test_passes_where_nothing_is_broken(row: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    break_class(row._replace(mutation=row.mutation._replace(edits=())), monkeypatch)
    row.scene()
