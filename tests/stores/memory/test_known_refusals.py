"""A refusal that a memory store knows already is the one that looking again would give."""

from __future__ import annotations

import random

import pytest

from slidegate.core import Bucket, Decision, parse_limits
from slidegate.stores.memory import store as memory
from slidegate.stores.memory.store import MemoryStore
from slidegate.testing import FakeClock

LIMITS = ("4/second @4", "3/second @4", "9/second @4", "7/second @4", "5/second; 9/2s")
KEYS = ("ann", "bob")


def test_known_refusals_are_those_of_a_store_that_always_looks(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(10**12)
    monkeypatch.setattr(memory, "monotonic_ns", lambda: clock.now_us * 1_000)
    known = 0
    # A known refusal sweeps nothing, so each store drops empty windows at moments of its own. What may differ: readings
    # of an empty window, and the answer of `reset`, which tells whether there was one.
    for _ in range(40):
        quick, slow = MemoryStore(), MemoryStore(clock=clock)  # a store with a clock of its own always takes the lock
        buckets = [Bucket("rule", parse_limits(limits)) for limits in LIMITS]
        charged: list[tuple[Decision, Decision]] = []
        for _ in range(150):
            clock.advance(us=rng.choice((0, 0, rng.randrange(1_000), rng.randrange(400_000))))
            checks = ((rng.choice(buckets), rng.choice(KEYS), rng.choice((0, 1, 1, 1, 1, 2, 5))),)
            act = rng.choice(("hit",) * 12 + ("peek", "charge", "refund", "reset", "ban"))
            if act == "refund":
                if charged:
                    one, other = rng.choice(charged)
                    assert quick.refund(one) == slow.refund(other)
            elif act == "reset":
                for store in (quick, slow):
                    store.reset(checks[0][1])
            elif act == "ban":
                for store in (quick, slow):
                    store.bans.ban(checks[0][1], 3_600_000_000, "why", "eve")
                    assert not store.hit(checks)
                    assert store.bans.unban(checks[0][1], "eve")
            else:
                pair = getattr(quick, act)(checks), getattr(slow, act)(checks)
                one, other = pair
                assert (one.allowed, one.reason, one.now_us) == (other.allowed, other.reason, other.now_us)
                assert one.states == other.states
                known += act == "hit" and not one
                charged.append(pair)
    assert known > 500
