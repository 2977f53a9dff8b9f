"""Concurrency limits and places, with time as a number."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest

from slidegate.core import NEVER, OPEN, AnyLimit, Bucket, Concurrency, Limit
from slidegate.core.decision import Decision, Reason
from slidegate.stores.memory.store import MemoryStore


@pytest.mark.parametrize("amount", [4, "4", " 4 "])
def test_a_concurrency_limit_is_a_number_or_its_text(amount: int | str) -> None:
    limit = Concurrency(amount)
    assert (limit.amount, limit.span_us, str(limit), repr(limit)) == (4, 0, "4 at a time", "<Concurrency 4 at a time>")
    assert limit == Concurrency(4) != Concurrency(5)
    assert hash(limit) == hash(Concurrency(4))
    with pytest.raises(FrozenInstanceError):
        limit.amount = 5  # type: ignore[misc]
    assert limit != Limit(4, "1m")
    assert (isinstance(limit, AnyLimit), isinstance(limit, Limit), hasattr(limit, "window_us")) == (True, False, False)
    assert (limit.suffix, limit.window_s, limit.said) == ("permits", None, "4 at a time")
    named = Concurrency(amount, name="renders")
    assert str(named) == "renders: 4 at a time"
    assert copy.copy(named) == pickle.loads(pickle.dumps(named)) == named


def test_permits_are_taken_up_to_the_amount_and_free_when_given_back() -> None:
    limit, window, states = Concurrency(2), b"", []
    for _ in range(3):
        window, state = limit.spend(window, 0, 1)
        states.append(state)
    assert states == [(1, 0, 0, 0), (2, 0, 0, 0), (2, 0, 0, OPEN)]
    assert limit.spend(window, 0, 3)[1] == (2, 0, 0, NEVER)
    assert limit.remove(window, 0, 0, 0) is None
    free = limit.remove(window, 0, 0, 2)
    assert free is not None
    assert limit.spend(free, 10**15, 0)[1] == (0, 0, 0, 0), "a cost of nothing passes where a permit is free"


def test_no_time_frees_a_permit() -> None:
    limit = Concurrency(2)
    window, _ = limit.charge(b"", 10, 2)
    for now_us in (0, 10**18):
        assert limit.spend(limit.settle(window, now_us), now_us, 1)[1][3] == OPEN
    assert limit.expires_us(window) > 10**18
    assert (limit.expires_us(b""), limit.mark(window)) == (0, 0)


def test_count_denied_charges_a_refusal_for_lack_of_a_permit() -> None:
    store = MemoryStore()
    counting, held = Bucket("rule", (Limit(9, "1m"),), count_denied=True), Bucket("rule", (Concurrency(1),))
    assert store.charge(((held, "ann", 1),))
    assert not store.hit(((counting, "ann", 1), (held, "ann", 1)))
    assert (store.peek(((counting, "ann", 0),)).remaining, store.permits_held()) == (8, 1)
    assert store.charge(((held, "ann", 1),))
    assert store.permits_held() == 2


def test_a_refusal_shows_the_longest_wait() -> None:
    buckets = [Bucket(name, (Concurrency(1),)) for name in ("ends", "open", "never")]
    readings = [(1, 0, 0, 5), (1, 0, 0, OPEN), (1, 0, 0, NEVER)]
    for last, name in enumerate(("ends", "open", "never")):
        checks = [(bucket, "ann", 1) for bucket in buckets[: last + 1]]
        binding = Decision(False, Reason.LIMITED, 0, checks, readings[: last + 1]).binding
        assert binding.name == name
        assert binding.reset_after_us == binding.more_after_us == 0
