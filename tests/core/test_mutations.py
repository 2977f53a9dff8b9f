"""Tests of the tests: code that is broken on purpose has to fail the properties.

A mutation replaces text of a module. The text has to be there, so that a row cannot outlive what it breaks.
"""

from __future__ import annotations

import asyncio
import random
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import slidegate.core.limits
import slidegate.core.window
import slidegate.stores.memory
from slidegate.testing import FakeClock
from slidegate.testing.programs import Player, program

from .test_window_properties import (
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

LIMITS, WINDOW, MEMORY = slidegate.core.limits, slidegate.core.window, slidegate.stores.memory
ROUNDS = 3_000


class Mutation(NamedTuple):
    """What is broken, where, and the texts that break it: (there now, instead)."""

    what: str
    module: types.ModuleType
    edits: tuple[tuple[str, str], ...]


RINGS = [
    Mutation("k slots instead of k + 1", WINDOW, (("self.slice_count = slices", "self.slice_count = slices - 1"),)),
    Mutation("k + 2 slots", WINDOW, (("self.slice_count = slices", "self.slice_count = slices + 1"),)),
    Mutation("< instead of <= where the rest fits", WINDOW, (("if excess <= 0:", "if excess < 0:"),)),
    Mutation("one unit too many", WINDOW, (("if spent <= amount:", "if spent <= amount + 1:"),)),
    Mutation("leaves one microsecond late", WINDOW, (("now_us >= self.leaves_us", "now_us > self.leaves_us"),)),
    Mutation("times at the edge stay", WINDOW, (("gone = bisect_right(", "gone = bisect_left("),)),
    Mutation("expiry one slice early", WINDOW, (("// self.slice_us + 1) * _COUNT", "// self.slice_us + 2) * _COUNT"),)),
    Mutation("expiry one slice late", WINDOW, (("// self.slice_us + 1) * _COUNT", "// self.slice_us) * _COUNT"),)),
    Mutation(
        "a first unit leaves one slice early",
        WINDOW,
        (("end_us + self.slice_count * self.slice_us", "end_us + (self.slice_count - 1) * self.slice_us"),),
    ),
    Mutation(
        "a first unit leaves one slice late",
        WINDOW,
        (("end_us + self.slice_count * self.slice_us", "end_us + (self.slice_count + 1) * self.slice_us"),),
    ),
    Mutation(
        "later units leave one slice early", WINDOW, (("self.newest_us + held *", "self.newest_us + (held - 1) *"),)
    ),
    Mutation(
        "later units leave one slice late", WINDOW, (("self.newest_us + held *", "self.newest_us + (held + 1) *"),)
    ),
    Mutation(
        "the whole ring empties one slice early",
        WINDOW,
        (
            (
                "if now_us >= self.newest_us + self.slice_count * self.slice_us",
                "if now_us >= self.newest_us + (self.slice_count - 1) * self.slice_us",
            ),
        ),
    ),
    Mutation(
        "waits for one slot too many", WINDOW, (("bisect_left(tuple(accumulate", "bisect_right(tuple(accumulate"),)
    ),
    Mutation("waits for one unit too few", WINDOW, (("self._times()[excess - 1]", "self._times()[excess - 2]"),)),
    Mutation(
        "a refusal is remembered for another cost", WINDOW, (("if room != self._blocked_room or now_us", "if now_us"),)
    ),
    Mutation("a refusal is remembered for ever", WINDOW, (("self.blocked_until_us = 0", "pass"),)),
    Mutation("a skipped slice is not kept", WINDOW, (("// self.slice_us - 1\n", "// self.slice_us - 2\n"),)),
    Mutation(
        "a refusal is charged",
        WINDOW,
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
    Mutation("times ahead of now stay", WINDOW, (("min(time_us, now_us) for", "time_us for"),)),
    Mutation(
        "counts ahead of now are forgotten", WINDOW, (("self._load([*kept, (running_us, ahead)])", "self._load(kept)"),)
    ),
    Mutation("a refund takes from any slice", WINDOW, (("if slice_start_us == start_us and 0", "if 0"),)),
    Mutation("a refund of times takes them all", WINDOW, (("times[first + units :]", "()"),)),
]
STORES = [
    Mutation("peek charges", MEMORY, (("copy(window)", "window"),)),
    Mutation("a second refund hands back again", MEMORY, (("decision.charge.clear()", "pass"),)),
    Mutation("a refusal charges the limits that had room", MEMORY, (("if any(waits):", "if all(waits):"),)),
    Mutation("reset does nothing", MEMORY, (("table.windows[key] = new_window(table.limit)", "pass"),)),
    Mutation("rules share windows", MEMORY, (("identity = (rule, limit", "identity = ('', limit"),)),
    Mutation("a new amount starts anew", MEMORY, (("= table.fetch(key, now_us)", "= table.windows.get(key)"),)),
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
    return Kit(limit=made.Limit) if mutation.module is LIMITS else Kit(window=made.new_window)


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


def play(rolled: bytes, new_store: Callable[..., slidegate.stores.memory.MemoryStore]) -> None:
    """Play a random program to a store and the reference."""
    made = program(rolled)
    clock = FakeClock(made.start_us)
    asyncio.run(Player(new_store(clock=clock), clock, made.rules).play(made.moves))


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


@pytest.mark.parametrize("mutation", STORES, ids=lambda mutation: mutation.what)
def test_the_store_contract_catches(mutation: Mutation) -> None:
    broken = mutated(mutation).MemoryStore
    assert_caught(lambda rolled: play(rolled, broken))


def test_a_loaded_copy_without_mutation_passes() -> None:
    window, memory = (mutated(Mutation("nothing", module, ())) for module in (WINDOW, MEMORY))
    for rolled in bytes_of_any_length(60):
        agrees_with_the_reference(Kit(window=window.new_window), unsteady(rolled))
        keeps_the_bound(Kit(window=window.new_window), traffic(rolled))
        play(rolled, memory.MemoryStore)


def test_a_mutation_of_what_is_not_there_is_an_error() -> None:
    with pytest.raises(AssertionError, match="breaks nothing"):
        mutated(Mutation("nothing", WINDOW, (("this is not in the source", ""),)))
