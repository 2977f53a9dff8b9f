"""Threads that take turns at one limiter: whatever one does, and wherever another one interrupts it, the bounds hold.

The pairs of what two threads do are played one after the other. The first thread is interrupted at each of its points
in turn; some time passes there, the second one runs to its end, and then the first one goes on. Before and after, the
key spends what it may.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slidegate import Limiter, MemoryStore, parse_limits
from slidegate.core import Bucket, Concurrency, Decision
from slidegate.limiter.callers import BucketCaller
from slidegate.limiter.overrides import Override
from slidegate.testing import FakeClock, limits_clock

from ..remote_stores import SlowStore
from ..turns import TurningLock, interrupted, turning_locks

AMOUNT, PERMITS, WINDOW_US = 5, 2, 1_000_000
RULE, TASKS = Bucket("rule", parse_limits(f"{AMOUNT}/second; 9999/day")), Bucket("tasks", [Concurrency(PERMITS)])
ACTS = ["burst", "idle", "refund", "release", "lower", "other", "reset", "ban", "unban"]

TWICE = ["core/decision.py", "core/reservation.py", "memory/store.py"]
"""A thread that gives back what another one gives back is interrupted at each line of these files, too."""


class Program:
    numbers = itertools.count()

    def __init__(self, limiter: Limiter, clock: FakeClock) -> None:
        self.key = f"user:{next(self.numbers)}"
        self.limiter, self.clock = limiter, clock
        self.caller = BucketCaller(RULE)
        limiter.engine.register(self.caller)
        self.steps, self.is_forgotten = 0, False
        self.admitted = dict[Decision, tuple[int, int]]()  # began and ended
        self.resets = [(0, 0)]
        self.bans, self.unbans = list[tuple[int, int]](), list[tuple[int, int]]()
        self.holders = set[Decision]()
        self.shared = [self.hit() for _ in range(3)][1:]
        self.permit = self.hit(TASKS)
        self.hit(TASKS)

    def step(self) -> int:
        self.steps += 1
        return self.steps

    def hit(self, bucket: Bucket = RULE, key: str = "") -> Decision:
        key = key or self.key
        began = self.step()
        decision: Any = self.limiter.engine.hit(((bucket, key, 1),), (key,))
        ended = self.step()
        if decision and key == self.key:
            assert not self.is_banned(began, ended), "it is banned"
            if bucket is RULE:
                self.admitted[decision] = began, ended
            else:
                self.holders.add(decision)
                assert len(self.holders) <= PERMITS
        return decision

    # -- what a thread does --------------------------------------------------------------------------------------------

    def burst(self) -> None:
        for _ in range(AMOUNT):
            self.hit()

    def idle(self) -> None:
        self.hit(key="idle")

    def other(self) -> None:
        """A new limit, and a question about two keys."""
        fresh = Bucket(f"rule-{self.step()}", parse_limits("9/hour"))
        self.limiter.engine.hit(((fresh, "zoe", 1), (fresh, "bob", 1)), ())

    def refund(self) -> None:
        self.is_forgotten = True
        for decision in self.shared:
            self.admitted.pop(decision, None)
            self.limiter.sync.refund(decision)

    def release(self) -> None:
        self.holders.discard(self.permit)
        for reservation in self.limiter.engine.release(self.permit):
            assert (self.limiter.engine.failover or self.limiter.store).refund([reservation])
        self.hit(TASKS)

    def reset(self) -> None:
        began, self.is_forgotten = self.step(), True
        self.limiter.sync.reset(self.key)
        self.resets.append((began, self.step()))

    def ban(self) -> None:
        began = self.step()
        self.limiter.sync.ban(self.key, "1h")
        self.bans.append((began, self.step()))

    def unban(self) -> None:
        self.unbans.append((self.step(), 10**9))
        self.limiter.sync.unban(self.key)
        self.unbans[-1] = self.unbans[-1][0], self.step()

    def lower(self) -> None:
        overrides = self.limiter.engine.overrides
        for amount in (3, AMOUNT):
            text = f"{amount}/second"
            override = Override("rule", text, "eve", "", 0, 9 * 10**16)
            overrides.replace(overrides.begin_reading(), [override])

    # -- what they may see ---------------------------------------------------------------------------------------------

    def is_banned(self, began: int, ended: int) -> bool:
        """Return whether the key was certainly banned during a hit: no unban was carried out beside it."""
        for ban_began, ban_ended in self.bans:
            between = [one for one in self.unbans if one[1] > ban_began and one[0] < ended]
            if ban_ended < began and not between:
                return True
        return False

    def check(self) -> None:
        """Check that no window contains more than its amount, and that what is left is what was not spent."""
        for (_, begins), (ends, _) in zip(self.resets, [*self.resets[1:], (10**9, 0)], strict=True):
            times = [one.now_us for one, (began, ended) in self.admitted.items() if began > begins and ended < ends]
            times.sort()
            for first, last in zip(times, times[AMOUNT:], strict=False):
                assert last - first >= WINDOW_US, times
        if not self.is_forgotten:
            charged = sorted(self.admitted, key=lambda one: one.readings[1][0])  # in this order, within the day
            assert charged == sorted(charged, key=lambda one: one.now_us), "a unit has the time of before another one"
        spent: Any = self.limiter.engine.peek(((RULE, self.key, 0), (TASKS, self.key, 0)), ())
        live = [one for one in self.admitted if one.now_us > spent.now_us - WINDOW_US]
        if spent.readings and len(self.resets) == 1:
            (units, *_), _, (permits, *_) = spent.readings
            assert (units, permits) == (len(live), len(self.holders))


class Opened(NamedTuple):
    """Makes limiters whose clock is `clock`; `left_out` is what they cannot do."""

    limiter: Callable[[], Limiter]
    clock: FakeClock
    left_out: Sequence[str]


class Away(SlowStore):
    """A store that does not answer, so that each process counts by itself."""

    answers_threads = True

    def __init__(self) -> None:
        super().__init__(inline=True)
        self.error = ConnectionRefusedError()


@pytest.fixture(params=["memory", "lmdb", "local"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Limiters on memory, on LMDB, or on a store that is away."""
    clock = FakeClock(10**15)
    with limits_clock(clock), turning_locks():
        if request.param == "memory":
            yield Opened(lambda: Limiter(MemoryStore()), clock, [])
        elif request.param == "local":
            yield Opened(lambda: Limiter(Away()), clock, ["reset", "ban", "unban"])
        else:
            lmdb, gate = pytest.importorskip("slidegate.stores.lmdb"), import_module("slidegate.stores.lmdb.gate")
            monkeypatch.setattr(gate.THREAD_LOCK, "lock", TurningLock())
            limiter = Limiter(lmdb.LmdbStore(tmp_path / "store", clock=clock), deadline="60s")
            yield Opened(lambda: limiter, clock, ["ban", "unban"])
            limiter.sync.close()


@pytest.mark.parametrize("first", ACTS)
def test_whatever_two_threads_do_and_wherever_one_is_interrupted_the_bounds_hold(opened: Opened, first: str) -> None:
    programs, acts = list[Program](), [act for act in ACTS if act not in opened.left_out]
    if first not in acts:
        return
    for second, idle_ms, waits_ms in itertools.product(acts, (0, 1_100), (0, 20)):

        def begin(second: str = second, idle_ms: int = idle_ms, waits_ms: int = waits_ms) -> Any:
            program = Program(opened.limiter(), opened.clock)
            programs.append(program)
            program.clock.advance(us=idle_ms * 1_000)

            def interrupt() -> None:
                program.clock.advance(us=waits_ms * 1_000)
                getattr(program, second)()

            return getattr(program, first), interrupt

        for point in interrupted(begin, TWICE if first == second and first[:2] == "re" else ()):
            program = programs.pop()
            try:
                program.check()
                program.clock.advance("998ms")
                program.idle()
                program.burst()
                program.check()
            except AssertionError as error:
                pytest.fail(f"{first} interrupted by {second} at {point}, {idle_ms} ms idle, {waits_ms} ms: {error}")
