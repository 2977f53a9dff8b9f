"""Tests of the tests: code that is broken on purpose has to fail the properties.

A mutation replaces text of a module. The text has to be there, so that a row cannot outlive what it breaks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import slidegate.core.bans.in_force
import slidegate.core.bans.policy
import slidegate.core.bans.rows
import slidegate.core.bans.rules
import slidegate.core.bans.standing
import slidegate.core.demand
import slidegate.core.limits
import slidegate.core.windows.bookings
import slidegate.core.windows.counters
import slidegate.core.windows.timestamps
import slidegate.stores.memory.bans
import slidegate.stores.memory.demands
import slidegate.stores.memory.hot
import slidegate.stores.memory.store
import slidegate.stores.memory.tables
from slidegate.core import BookedWindow, CounterWindow, TimestampWindow
from slidegate.testing import FakeClock
from slidegate.testing.contract.ban_player import BanPlayer
from slidegate.testing.contract.ban_programs import ban_program
from slidegate.testing.contract.player import Player
from slidegate.testing.contract.programs import program

from ..stores import memory_scenes as scenes
from ..stores import test_shared_cells as shared_cells
from .windows.test_window_properties import (
    Kit,
    Traffic,
    agrees_with_the_reference,
    keeps_the_bound,
    refuses_for_free,
    refuses_only_what_would_break_the_bound,
    traffic,
    unsteady,
    waits_exactly_as_long_as_it_says,
)

LIMITS, TIMES, COUNTS = slidegate.core.limits, slidegate.core.windows.timestamps, slidegate.core.windows.counters
BOOKINGS, MEMORY, DEMAND = slidegate.core.windows.bookings, slidegate.stores.memory.store, slidegate.core.demand
TABLES, DEMANDS = slidegate.stores.memory.tables, slidegate.stores.memory.demands
STRIKES, LIST, ROWS = slidegate.core.bans.standing, slidegate.core.bans.in_force, slidegate.core.bans.rows
LADDERS, RULES = slidegate.core.bans.policy, slidegate.core.bans.rules
MEMORY_BANS = slidegate.stores.memory.bans
ROUNDS = 3_000


class Mutation(NamedTuple):
    """What is broken, where, and the texts that break it: (there now, instead)."""

    what: str
    module: types.ModuleType
    edits: tuple[tuple[str, str], ...]


RINGS = [
    Mutation("k slots instead of k + 1", COUNTS, (('(slices, "slices")', '(slices, "slices") - 1'),)),
    Mutation("k + 2 slots", COUNTS, (('(slices, "slices")', '(slices, "slices") + 1'),)),
    Mutation("< instead of <= where the rest fits", COUNTS, (("if excess <= 0:", "if excess < 0:"),)),
    Mutation("one unit too many", COUNTS, (("if spent <= amount:", "if spent <= amount + 1:"),)),
    Mutation("leaves one microsecond late", COUNTS, (("now_us >= self.leaves_us", "now_us > self.leaves_us"),)),
    Mutation(
        "times at the edge stay",
        TIMES,
        (("import bisect_right", "import bisect_left, bisect_right"), ("_drop(bisect_right(", "_drop(bisect_left(")),
    ),
    Mutation("expiry one slice early", COUNTS, (("// self.slice_us + 1) * _COUNT", "// self.slice_us + 2) * _COUNT"),)),
    Mutation("expiry one slice late", COUNTS, (("// self.slice_us + 1) * _COUNT", "// self.slice_us) * _COUNT"),)),
    Mutation(
        "a first unit leaves one slice early",
        COUNTS,
        (("end_us + self.slice_count * self.slice_us", "end_us + (self.slice_count - 1) * self.slice_us"),),
    ),
    Mutation(
        "a first unit leaves one slice late",
        COUNTS,
        (("end_us + self.slice_count * self.slice_us", "end_us + (self.slice_count + 1) * self.slice_us"),),
    ),
    Mutation(
        "later units leave one slice early", COUNTS, (("self.newest_us + held *", "self.newest_us + (held - 1) *"),)
    ),
    Mutation(
        "later units leave one slice late", COUNTS, (("self.newest_us + held *", "self.newest_us + (held + 1) *"),)
    ),
    Mutation(
        "the whole ring empties one slice early",
        COUNTS,
        (
            (
                "if now_us >= self.newest_us + self.slice_count * self.slice_us",
                "if now_us >= self.newest_us + (self.slice_count - 1) * self.slice_us",
            ),
        ),
    ),
    Mutation(
        "waits for one slot too many",
        COUNTS,
        (
            ("import bisect_left", "import bisect_right"),
            ("bisect_left(tuple(accumulate", "bisect_right(tuple(accumulate"),
        ),
    ),
    Mutation("waits for one unit too few", TIMES, (("self._times()[excess - 1]", "self._times()[excess - 2]"),)),
    Mutation(
        "a refusal is remembered for another cost",
        COUNTS,
        (("if refusal is None or room != refusal[0]", "if refusal is None"),),
    ),
    Mutation("a refusal is remembered for ever", COUNTS, (("self.refusal = None", "pass"),)),
    Mutation("a skipped slice is not kept", COUNTS, (("// self.slice_us - 1\n", "// self.slice_us - 2\n"),)),
    Mutation(
        "a refusal is charged",
        COUNTS,
        (("        if wait_us == 0:\n            self.add", "        if True:\n            self.add"),),
    ),
    Mutation(
        "floor instead of ceil for the slice", LIMITS, (("-(-window_us // resolution)", "window_us // resolution"),)
    ),
    Mutation("floor instead of ceil for k", LIMITS, (("-(-window_us // slice_us)", "window_us // slice_us"),)),
    Mutation(
        "k of k slices rounded down",
        LIMITS,
        (("-(-window_us // resolution)", "window_us // resolution"), ("-(-window_us // slice_us)", "resolution")),
    ),
    Mutation(
        "exact one unit beyond the resolution",
        LIMITS,
        (("exact = amount <= resolution", "exact = amount < resolution"),),
    ),
]
# Each of these has to fail the one promise that it breaks, and not only the comparison with the reference.
PROMISES: list[tuple[str, Callable[[Kit, Traffic], None]]] = [
    ("k slots instead of k + 1", keeps_the_bound),
    ("one unit too many", keeps_the_bound),
    ("a first unit leaves one slice early", keeps_the_bound),
    ("k of k slices rounded down", keeps_the_bound),
    ("k + 2 slots", refuses_only_what_would_break_the_bound),
    ("< instead of <= where the rest fits", refuses_only_what_would_break_the_bound),
    ("expiry one slice late", refuses_only_what_would_break_the_bound),
    ("waits for one slot too many", waits_exactly_as_long_as_it_says),
    ("waits for one unit too few", waits_exactly_as_long_as_it_says),
    ("a refusal is charged", refuses_for_free),
]
STEPS = [
    Mutation("times ahead of now stay", TIMES, (("min(time_us, now_us) for", "time_us for"),)),
    Mutation(
        "counts ahead of now are forgotten", COUNTS, (("self._load([*kept, (running_us, ahead)])", "self._load(kept)"),)
    ),
    Mutation("a refund takes from any slice", COUNTS, (("if slice_start_us == start_us and 0", "if 0"),)),
    Mutation("a refund of times takes them all", TIMES, (("times[first + units :]", "()"),)),
]
STORES = [
    Mutation("peek charges", MEMORY, (("copy(window)", "window"),)),
    Mutation("a second refund hands back again", DEMANDS, (("decision.charge = ()", "pass"),)),
    Mutation("a refusal charges the limits that had room", DEMAND, (("if any(waits):", "if all(waits):"),)),
    Mutation("reset does nothing", TABLES, (("        self.drop(key)\n        self.rows.put(key, 0)\n", ""),)),
    Mutation(
        "rules share windows", MEMORY, (("return bucket.rule, limit.same_window", "return '', limit.same_window"),)
    ),
    Mutation("a new amount starts anew", MEMORY, (("if table.take_over(key, now_us):", "if 0:"),)),
]

MOVES = [
    Mutation("what goes down is forgotten", TABLES, (("self.rows.put(key, row_of(window))", "pass"),)),
    Mutation("what comes up is empty", TABLES, (("        if row:\n            load_row(ring, row)\n", ""),)),
    Mutation("what is spent at rest is forgotten", TABLES, (("reading, shard[key] = spent", "reading, _ = spent"),)),
    Mutation("a look at rest keeps what it read", TABLES, (("shard[key] = row_of(ring)", "pass"),)),
]
DEBTS = [
    Mutation("a debt of times pushes nothing out", TIMES, (("self._drop(pushed_out)", "pass"),)),
    Mutation("a debt of times is handed back whole", TIMES, (("return kept - pushed_out", "return kept"),)),
    Mutation("a refund of the newest counts leaves the slice open", COUNTS, (("self._reopen()", "pass"),)),
    Mutation(
        "a refusal is not charged", DEMAND, (("ask.window.charge(now_us, ask.cost", "ask.window.charge(now_us, 0"),)
    ),
    Mutation("all refusals are charged", DEMAND, (("if ask.bucket.count_denied]", "]"),)),
    Mutation("the wait is the one before the charge", DEMAND, (("if denied else waits", "if not denied else waits"),)),
    Mutation("any number may wait", DEMAND, ((" and waiting < ask.bucket.wait_max", ""),)),
    Mutation(
        "only the own limits have to agree on the moment",
        DEMAND,
        (("max(rooms, default=from_us) == from_us", "True"),),
    ),
    Mutation("a place is never handed back", DEMANDS, (("changed |= window.leave(charged.spent_us)", "pass"),)),
]
PLACES = [
    Mutation(
        "an arrival ignores what is booked for later", BOOKINGS, (("if found_us != NEVER and cost and", "if 0 and"),)
    ),
    Mutation(
        "an arrival is held by what comes when it has left",
        BOOKINGS,
        (("< self.limit.leaves_us(found_us)", "< 2**62"),),
    ),
    Mutation(
        "the next who waits ignores the one before",
        BOOKINGS,
        (("            self._move((moment_us, units), ring)\n", ""),),
    ),
    Mutation("what is due is forgotten", BOOKINGS, (("self._move(booked.pop(0), self.ring)", "booked.pop(0)"),)),
    Mutation(
        "what is due comes one microsecond late", BOOKINGS, (("booked[0][0] <= now_us", "booked[0][0] < now_us"),)
    ),
    Mutation("a cost of nothing has to fit later as well", BOOKINGS, (("and cost and moment_us", "and moment_us"),)),
    Mutation(
        "bookings stay where they are when the clock steps back", BOOKINGS, (("if now_us < self._seen_us:", "if 0:"),)
    ),
    Mutation("a copy shares the ring", BOOKINGS, (("BookedWindow(copy(self.ring),", "BookedWindow(self.ring,"),)),
    Mutation(
        "a refund of a place takes all of the moment",
        BOOKINGS,
        (("self._change(counts_us, -units)", "self._change(counts_us, -there)"),),
    ),
    Mutation(
        "a changed ring loses its bookings", BOOKINGS, (("twin.book(now_us, moment_us, units, waits=False)", "pass"),)
    ),
]
BANS = [
    Mutation("strikes while a ban is only reported count", STRIKES, (("if now_us < self.until_us:", "if False:"),)),
    Mutation(
        "a strike at the far end of the window counts", STRIKES, (("if s.at_us > from_us", "if s.at_us >= from_us"),)
    ),
    Mutation("a ban takes one strike more", STRIKES, (("return total >= amount", "return total > amount"),)),
    Mutation(
        "a ban leaves the strikes that led to it",
        STRIKES,
        (("        self.strikes = []\n        length_us", "        length_us"),),
    ),
    Mutation("a ban is no rung", STRIKES, (("self.rung += 1", "self.rung = max(self.rung, 1)"),)),
    Mutation("nothing is ever forgiven", STRIKES, (("max(clean_us, 0) // forgive_us", "0"),)),
    Mutation(
        "everything is forgiven at once",
        STRIKES,
        (("max(clean_us, 0) // forgive_us", "(clean_us >= forgive_us) * 99"),),
    ),
    Mutation(
        "clean time runs from the last strike alone", STRIKES, (("max(self.last_us, self.until_us)", "self.last_us"),)
    ),
    Mutation(
        "clean time runs from the last ban alone", STRIKES, (("max(self.last_us, self.until_us)", "self.until_us"),)
    ),
    Mutation(
        "an address of a prefix counts as often as it is banned",
        STRIKES,
        (("and (not source or s.source != source)", ""),),
    ),
    Mutation(
        "strikes that are needed are pushed out",
        STRIKES,
        (("while total - kept[0].weight >= amount:", "while total - kept[0].weight >= amount - 1 > 0:"),),
    ),
    Mutation(
        "the ladder begins a rung higher",
        LADDERS,
        (("self.ladder_us[min(rung, len(self.ladder_us)) - 1]", "self.ladder_us[min(rung, len(self.ladder_us) - 1)]"),),
    ),
    Mutation(
        "a ban ends a microsecond late",
        LIST,
        (("return now_us >= self.ends_us or wall_us >= ", "return now_us > self.ends_us or wall_us > "),),
    ),
    Mutation("the shortest ban is named", LIST, (("lasts_longer(ban, found)", "lasts_longer(found, ban)"),)),
    Mutation(
        "networks hold no addresses",
        LIST,
        (("if network is not None:", "if network == key:"),),
    ),
    Mutation(
        "what was prolonged is let go at its first end",
        LIST,
        (("            if ban.is_over(now_us, wall_us):\n", "            if True:\n"),),
    ),
    Mutation("no time passes between two stores", ROWS, (("max(wall_us, _written_us(row))", "wall_us"),)),
    Mutation("time runs back between two stores", ROWS, (("max(wall_us, _written_us(row))", "_written_us(row)"),)),
    Mutation(
        "strikes and rungs end with the process",
        ROWS,
        (("known.standings.append(_standing(row, behind_us, now_us))", "pass"),),
    ),
    Mutation(
        "strikes while banned count",
        RULES,
        (
            (
                "if ban is not None and not ban.is_over(now_us, wall_us):\n            return",
                "if False:\n            return",
            ),
        ),
    ),
    Mutation(
        "a ban that another took the place of still holds strikes",
        RULES,
        (("standing.until_us = min(standing.until_us, now_us)", "pass"),),
    ),
    Mutation(
        "any number of bans is made",
        RULES,
        (("policy.most.amount, 1)[3]:", "policy.most.amount, 1)[3] and False:"),),
    ),
    Mutation(
        "an unban forgives nothing",
        RULES,
        (
            (
                "standing = ledger.standings.take(key)\n            forgotten",
                "standing = ledger.standings.get(key)\n            forgotten",
            ),
        ),
    ),
    Mutation(
        "an unban lifts nothing",
        RULES,
        (("ban = self._records.list.remove(key)", "ban = self._records.list.get(key)"),),
    ),
    Mutation("a prolonged ban is clean time", RULES, (("standing.until_us = prolonged.ends_us", "pass"),)),
    Mutation("requests prolong no ban", RULES, (("if ban.prolong_us else", "if False else"),)),
    Mutation("looking prolongs a ban", RULES, (("        if prolong:\n", "        if True:\n"),)),
    Mutation(
        "a strike of an address is one of its prefix",
        RULES,
        (("if ban is not None and prefix and", "if prefix and"),),
    ),
    Mutation(
        "a policy that only reports bans",
        RULES,
        (('is not None and policy.action == "ban":\n', "is not None:\n"),),
    ),
    Mutation(
        "policies share their strikes",
        RULES,
        (("open_ledger(policy.name)", "open_ledger('')"),),
    ),
    Mutation(
        "bans by hand are not remembered",
        RULES,
        (("self._put(ban)\n        return ban", "self.record(ban)\n        return ban"),),
    ),
]

# Random programs seldom come to where these differ, so each has to fail a scene of its own.
AFTER_THE_LOCK = ("        with self._lock:\n            ", "        if True:\n            ")
SCENES: list[tuple[Mutation, Callable[[scenes.NewStore], None]]] = [
    (
        Mutation("a reset without the lock", MEMORY, (tuple(edge + "return sum(" for edge in AFTER_THE_LOCK),)),
        scenes.every_call_looks_under_the_lock,
    ),
    (
        Mutation(
            "a peek without the lock",
            MEMORY,
            (tuple(edge + "barred = self.bans.judge(checks, guarded, prolong=F" for edge in AFTER_THE_LOCK),),
        ),
        scenes.every_call_looks_under_the_lock,
    ),
    (
        Mutation(
            "a new table does not wake the sweep",
            MEMORY,
            (("        self._sweep_due_us = min(self._sweep_due_us, table.due_us)\n", ""),),
        ),
        scenes.a_new_table_wakes_the_sweep,
    ),
    (
        Mutation(
            "a debt never sweeps",
            MEMORY,
            (("self._hot.make_room()\n            if now", "self._hot.make_room()\n            if 0 > now"),),
        ),
        scenes.debts_let_go_of_windows_too,
    ),
    (
        Mutation(
            "a debt comes before what was booked before it",
            BOOKINGS,
            (("        self.settle(now_us)\n        return self.ring.charge", "        return self.ring.charge"),),
        ),
        scenes.a_debt_comes_after_what_was_booked_before_it,
    ),
    (
        Mutation(
            "an empty newest slot is kept", COUNTS, (("while pairs and not pairs[-1][1]:", "while 0 and pairs:"),)
        ),
        scenes.a_refund_closes_the_slice_that_it_emptied,
    ),
    *(
        (
            Mutation("a known refusal outlives a change", ring, (("self.refusal = None", "pass"),)),
            scenes.a_known_refusal_ends_when_the_window_changes,
        )
        for ring in (TIMES, COUNTS)
    ),
    (
        Mutation(
            "a known refusal is one of every cost",
            MEMORY,
            (("now_us < leaves_us and room == amount - (cost or 1)", "now_us < leaves_us"),),
        ),
        scenes.a_known_refusal_ends_when_the_window_changes,
    ),
    (
        Mutation(
            "a cost of nothing is refused as if the amount were larger",
            COUNTS,
            (("amount - (cost or 1) == refusal[0]", "amount - cost == refusal[0]"),),
        ),
        scenes.a_cost_of_nothing_waits_for_the_lowered_amount,
    ),
    (
        Mutation(
            "keys that meet have to fit beside each other",
            DEMAND,
            (("ahead = before.get(key, 0)", "ahead = sum(before.values())"),),
        ),
        scenes.a_cost_of_the_whole_amount_waits_beside_a_stranger,
    ),
    (
        Mutation("keys that meet are charged as one", DEMAND, (("        if ask.others:", "        if 0:"),)),
        scenes.a_cost_of_the_whole_amount_waits_beside_a_stranger,
    ),
    (
        Mutation(
            "who waits takes a place where there is room",
            DEMAND,
            (("waits=check in lacking and not again", "waits=not again"),),
        ),
        scenes.who_waits_takes_no_place_where_there_is_room,
    ),
    (
        Mutation(
            "a moment comes before the one that was asked for",
            BOOKINGS,
            (("at_us = max(at_us, moment_us)", "at_us = moment_us"),),
        ),
        scenes.a_moment_for_several_limits_is_not_before_any_of_them,
    ),
    (
        Mutation("a step begins no generation", TABLES, (("            self.since[place] = generation\n", ""),)),
        scenes.a_refund_does_not_find_what_a_step_of_the_clock_has_moved,
    ),
    (
        Mutation("a refund finds what a step has moved", MEMORY, (("now_us < self._latest_us:", "False:"),)),
        scenes.a_refund_does_not_find_what_a_step_of_the_clock_has_moved,
    ),
]

ONE_CELL = ("SHARED_CELLS: Final = 4_096", "SHARED_CELLS: Final = 1")
CELLS: list[tuple[Mutation, Callable[[shared_cells.Small], None]]] = [
    (
        Mutation(
            "a key leaves its cell with nothing",
            TABLES,
            (ONE_CELL, ("return copy_of_cell(cell, now_us)", "return self.new_window()")),
        ),
        shared_cells.test_a_key_that_has_moved_is_counted_by_itself,
    ),
    (
        Mutation(
            "a key leaves the cell in which it waits",
            TABLES,
            (ONE_CELL, ("if table is not None and table.waiters.get(number, {}).get(key, now_us) > now_us:", "if 0:")),
        ),
        lambda small: shared_cells.test_a_key_that_waits_in_its_cell_stays_there_until_then(small, "2/10s"),
    ),
    (
        Mutation(
            "a changed amount forgets who waits in a cell",
            TABLES,
            (ONE_CELL, ("self.waiters[place] = twin.waiters.pop(place)", "twin.waiters.pop(place)")),
        ),
        lambda small: shared_cells.test_a_key_that_waits_in_its_cell_stays_there_until_then(small, "5/10s @4"),
    ),
    (
        Mutation(
            "a refund leaves the copy of its key as it is",
            TABLES,
            (ONE_CELL, ("if first <= charge.generation < last:", "if 0:")),
        ),
        shared_cells.test_a_refund_after_the_move_frees_the_unit_in_the_cell_and_in_the_copy_of_its_key,
    ),
    (
        Mutation(
            "a refund takes from whatever window its key has",
            TABLES,
            (ONE_CELL, ("if first <= charge.generation < last:", "if 1:")),
        ),
        shared_cells.test_a_refund_frees_nothing_in_a_window_that_is_no_copy_of_the_cell,
    ),
]


def mutated(mutation: Mutation) -> types.ModuleType:
    """Return a module of the mutated source."""
    source = Path(str(mutation.module.__file__)).read_text(encoding="utf-8")
    for there, instead in mutation.edits:
        assert there in source, f"{mutation.what!r} breaks nothing: {there!r} is not in {mutation.module.__name__}"
        source = source.replace(there, instead)
    made = types.ModuleType(f"{mutation.module.__name__}_mutated")
    made.__package__ = mutation.module.__package__
    sys.modules[made.__name__] = made  # where a dataclass looks itself up
    try:
        exec(compile(source, f"<{mutation.what}>", "exec"), vars(made))
    finally:
        del sys.modules[made.__name__]
    return made


def kit(mutation: Mutation) -> Kit:
    """Return what the properties test, broken."""
    made = mutated(mutation)
    if mutation.module is LIMITS:
        return Kit(limit=made.Limit)
    times, counts = (broken_ring(made, ring) for ring in (TimestampWindow, CounterWindow))
    return Kit(window=lambda limit: times(limit.window_us) if limit.exact else counts(limit.slices, limit.slice_us))


def broken_ring(made: types.ModuleType, whole: type) -> type:
    """Return a kind of `whole` with the methods of a mutated module, so that it is packed and read like a whole one."""
    if not hasattr(made, whole.__name__):
        return whole
    methods = vars(getattr(made, whole.__name__)).items()
    functions = {name: method for name, method in methods if isinstance(method, types.FunctionType)}
    return type(whole.__name__, (whole,), {"__slots__": (), **functions})


def store(mutation: Mutation) -> Callable[..., slidegate.stores.memory.store.MemoryStore]:
    """Return a memory store, broken."""
    made = mutated(mutation)
    if mutation.module is MEMORY:
        return made.MemoryStore
    memory = mutated(Mutation("nothing", MEMORY, ()))
    if mutation.module in (TABLES, TIMES, COUNTS):
        tables = made if mutation.module is TABLES else mutated(Mutation("nothing", TABLES, ()))
        if mutation.module is not TABLES:
            tables.new_count = kit(mutation).window
        memory.Table = tables.Table
        return memory.MemoryStore
    demands = made if mutation.module is DEMANDS else mutated(Mutation("nothing", DEMANDS, ()))
    for user, broken in ((demands, made), (memory, made), (memory, demands)):
        for name in vars(user).keys() & vars(broken).keys():
            function = getattr(broken, name)
            if function.__class__ is types.FunctionType and function.__module__ == broken.__name__:
                setattr(user, name, function)
    return memory.MemoryStore


def bytes_of_any_length(rounds: int = ROUNDS) -> Iterable[bytes]:
    """Return the same bytes every time."""
    rng = random.Random(20)
    return (rng.randbytes(rng.choice((40, 150, 400, 1_000))) for _ in range(rounds))


def assert_caught(attempt: Callable[[bytes], None]) -> None:
    """Fail unless one of the rounds fails."""
    for rolled in bytes_of_any_length():
        try:
            attempt(rolled)
        except AssertionError:
            return
        except Exception:  # a crash shows itself; the properties are there for wrong answers
            continue
    pytest.fail(f"not caught in {ROUNDS} rounds", pytrace=False)


def play(rolled: bytes, new_store: Callable[..., slidegate.stores.memory.store.MemoryStore]) -> None:
    """Play a random program to a store and the reference."""
    made = program(rolled)
    clock = FakeClock(made.start_us)
    asyncio.run(Player(new_store(clock=clock), clock, made.rules, made.modes).play(made.moves))


@pytest.mark.parametrize("mutation", MOVES, ids=lambda mutation: mutation.what)
def test_the_store_contract_catches_broken_storeys(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slidegate.stores.memory.hot, "HOT_WINDOWS", 1)
    broken = store(mutation)
    assert_caught(lambda rolled: play(rolled, broken))


@pytest.mark.parametrize("mutation", RINGS, ids=lambda mutation: mutation.what)
def test_the_reference_catches(mutation: Mutation) -> None:
    broken = kit(mutation)
    assert_caught(lambda rolled: agrees_with_the_reference(broken, traffic(rolled)))


@pytest.mark.parametrize("mutation", STEPS, ids=lambda mutation: mutation.what)
def test_the_reference_with_an_unsteady_clock_catches(mutation: Mutation) -> None:
    broken = kit(mutation)
    assert_caught(lambda rolled: agrees_with_the_reference(broken, unsteady(rolled)))


@pytest.mark.parametrize(("what", "promise"), PROMISES, ids=lambda row: getattr(row, "__name__", row))
def test_the_promise_alone_catches(what: str, promise: Callable[[Kit, Traffic], None]) -> None:
    (mutation,) = [mutation for mutation in RINGS if mutation.what == what]
    broken = kit(mutation)
    assert_caught(lambda rolled: promise(broken, traffic(rolled)))


@pytest.mark.parametrize("mutation", [*STORES, *DEBTS], ids=lambda mutation: mutation.what)
def test_the_store_contract_catches(mutation: Mutation) -> None:
    broken = store(mutation)
    assert_caught(lambda rolled: play(rolled, broken))


def break_places(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the methods of a mutated window with bookings in the place of the whole ones."""
    made = mutated(mutation)
    for name, method in vars(made.BookedWindow).items():
        if isinstance(method, types.FunctionType):
            monkeypatch.setattr(BookedWindow, name, method)
    made.BookedWindow = BookedWindow


@pytest.mark.parametrize(("mutation", "scene"), SCENES, ids=lambda row: getattr(row, "what", ""))
def test_a_scene_catches(
    mutation: Mutation, scene: Callable[[scenes.NewStore], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutation.module is BOOKINGS:
        break_places(mutation, monkeypatch)
        broken = slidegate.stores.memory.store.MemoryStore
    else:
        broken = store(mutation)
    with pytest.raises(AssertionError):
        scene(broken)


@pytest.mark.parametrize(("mutation", "scene"), CELLS, ids=lambda row: getattr(row, "what", ""))
def test_a_scene_of_shared_cells_catches(mutation: Mutation, scene: Callable[[shared_cells.Small], None]) -> None:
    broken = store(mutation)
    with pytest.raises(AssertionError):
        scene(lambda clock, max_keys: broken(max_keys=max_keys, clock=clock))


def test_a_ring_without_the_check_hands_back_twice() -> None:
    broken = kit(
        Mutation(
            "units <= spent",
            TIMES,
            (("< self.leaves_us and 0 < units <= self.spent:", "< self.leaves_us and 0 < units:"),),
        )
    )
    with pytest.raises(AssertionError):
        scenes.nothing_is_handed_back_twice(broken.window)


def test_seconds_that_are_cut_off_are_caught() -> None:
    broken = mutated(Mutation("int for round", LIMITS, (("round(value * 1_000_000)", "int(value * 1_000_000)"),)))
    with pytest.raises(AssertionError):
        scenes.seconds_are_rounded(broken.parse_duration_us)


@pytest.mark.parametrize("mutation", PLACES, ids=lambda mutation: mutation.what)
def test_the_store_contract_catches_broken_places(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    break_places(mutation, monkeypatch)
    assert_caught(lambda rolled: play(rolled, slidegate.stores.memory.store.MemoryStore))


def break_bans(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the methods and functions of a mutated module in the place of the whole ones."""
    made = mutated(mutation)
    for name, value in list(vars(made).items()):
        if getattr(value, "__module__", None) != made.__name__:
            continue
        if isinstance(value, types.FunctionType):
            for module in (RULES, MEMORY_BANS):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)
        elif isinstance(value, type):
            whole = getattr(mutation.module, name)
            for method, function in vars(value).items():
                if isinstance(function, types.FunctionType) and not method.startswith("__"):
                    monkeypatch.setattr(whole, method, function)
            setattr(made, name, whole)  # so that what it makes is equal to what others make


def play_bans(rolled: bytes) -> None:
    """Play a random program of strikes and bans to a memory store and the reference."""
    made = ban_program(rolled)
    player = BanPlayer(lambda clock: MEMORY.MemoryStore(clock=clock), made.start_us, made.policies)
    asyncio.run(player.play(made.moves))


@pytest.mark.parametrize("mutation", BANS, ids=lambda mutation: mutation.what)
def test_the_store_contract_catches_broken_bans(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable()  # thousands of bans; pytest keeps every line
    break_bans(mutation, monkeypatch)
    try:
        assert_caught(play_bans)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "module", [STRIKES, LADDERS, LIST, ROWS, RULES, MEMORY_BANS], ids=lambda module: module.__name__
)
def test_bans_of_a_loaded_copy_without_mutation_pass(module: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    break_bans(Mutation("nothing", module, ()), monkeypatch)
    for rolled in bytes_of_any_length(15):
        play_bans(rolled)


def test_a_loaded_copy_without_mutation_passes() -> None:
    kits = [kit(Mutation("nothing", module, ())) for module in (TIMES, COUNTS)]
    stores = [store(Mutation("nothing", module, ())) for module in (MEMORY, DEMAND, DEMANDS, TABLES)]
    for rolled in bytes_of_any_length(60):
        for whole in kits:
            agrees_with_the_reference(whole, unsteady(rolled))
            keeps_the_bound(whole, traffic(rolled))
        for new_store in stores:
            play(rolled, new_store)


def test_a_mutation_of_what_is_not_there_is_an_error() -> None:
    with pytest.raises(AssertionError, match="breaks nothing"):
        mutated(Mutation("nothing", COUNTS, (("this is not in the source", ""),)))
