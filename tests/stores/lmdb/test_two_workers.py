"""Two workers over one file: whoever wrote last, each decision is that of a store that is alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import pytest

from slidegate.core import Bucket, Decision, parse_limits
from slidegate.core.errors import StoreUnavailable
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

T = TypeVar("T")
BUCKETS = (
    Bucket("counts", parse_limits("40/10s")),
    Bucket("times", parse_limits("5/10s")),
    Bucket("both", parse_limits("4/10s; 30/1m"), count_denied=True),
)
KEYS = ("a", "b", "c")


class Uncommitted:
    """A transaction for which the disk has no room when it is committed."""

    def __init__(self, txn: Any) -> None:
        self.txn = txn

    def commit(self) -> None:
        self.txn.abort()
        raise lmdb.Error("No space left on device")

    def abort(self) -> None:
        """Do nothing: a commit that fails leaves nothing open."""


class Crowd:
    """Two stores over one file, as two workers have them, and one over another file."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.clock = FakeClock()
        self.chance = chance
        self.workers = [LmdbStore(root / "shared", clock=self.clock) for _ in range(2)]
        self.plain = LmdbStore(root / "plain", clock=self.clock)
        self.decided: list[tuple[Any, Any]] = []

    def both(self, act: Callable[[LmdbStore, int], T]) -> tuple[T, T]:
        """Let one worker act, and the plain store do the same."""
        if self.chance.random() < 0.25:
            self.workers.reverse()  # mostly one writes alone for a while
        return act(self.workers[0], 0), act(self.plain, 1)

    def hit(self) -> None:
        checks = [(bucket, self.chance.choice(KEYS), 1) for bucket in BUCKETS if self.chance.random() < 0.5]
        what = "charge" if self.chance.random() < 0.1 else "hit"
        answers: Any = self.both(lambda store, _: getattr(store, what)(tuple(checks)))
        assert seen(answers[0]) == seen(answers[1])
        self.decided = [*self.decided[-5:], answers]

    def refund(self) -> None:
        if self.decided:
            pair = self.chance.choice(self.decided)
            ours, plain = self.both(lambda store, at: store.refund(pair[at]))
            assert ours == plain

    def reset(self) -> None:
        key = self.chance.choice(KEYS)
        ours, plain = self.both(lambda store, _: store.reset(key))
        assert ours == plain

    def ban(self) -> None:
        """Write something that is no window."""
        self.both(lambda store, _: store.bans.ban("203.0.113.9", 1_000_000, "test", "test"))

    def wait(self) -> None:
        """Let time pass; now and then the clock steps back."""
        self.clock.set(
            max(self.clock() + self.chance.choice([100_000, 1_000_000, 5_000_000, 30_000_000, -2_000_000]), 0)
        )
        for store in (*self.workers, self.plain):
            store.hit(())  # what has left once stays away, for whoever has seen that moment

    def fail_to_commit(self) -> None:
        store, check = self.workers[0], (self.chance.choice(BUCKETS), self.chance.choice(KEYS), 1)
        env, commit = store._env, store._env.commit
        env.commit = lambda txn: commit(Uncommitted(txn))  # type: ignore[method-assign]
        try:
            with pytest.raises(StoreUnavailable):
                store.charge((check,))
        finally:
            env.commit = commit  # type: ignore[method-assign]

    def play(self, steps: int) -> None:
        rare = [self.reset, self.ban, self.wait, self.fail_to_commit]
        for _ in range(steps):
            act = self.hit if self.chance.random() < 0.7 else self.chance.choice([self.refund, *rare])
            act()
        self.clock.advance("1h")
        for _ in range(10):
            self.workers[0].hit(())
        assert self.workers[0].stats().keys == 0, "a row was written without an entry for the sweep"


def seen(decision: Decision) -> tuple[Any, ...]:
    """Return what can be read from a decision; if nothing is spent, nothing can leave."""
    readings = [reading if reading[0] else (0, reading[3]) for reading in decision.readings]
    return decision.allowed, decision.reason, readings


@pytest.fixture
def crowd_of(tmp_path: Path) -> Iterator[Callable[[int], Crowd]]:
    crowds: list[Crowd] = []

    def make(seed: int) -> Crowd:
        crowds.append(Crowd(tmp_path, random.Random(seed)))
        return crowds[-1]

    yield make
    for crowd in crowds:
        for store in (*crowd.workers, crowd.plain):
            store.close()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(3, 60))])
def test_two_workers_decide_like_one(crowd_of: Callable[[int], Crowd], seed: int) -> None:
    crowd_of(seed).play(1_500)
