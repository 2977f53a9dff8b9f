"""Resets of everything, as for tests, while threads count."""

import time

from slidegate import MemoryStore

from ...contract.harness import bucket
from ...hurry import at_once


def test_threads_get_no_more_than_the_amount_between_two_resets() -> None:
    """Whatever a reset meets half done, the windows after it hold what was spent after it."""
    store, rules = MemoryStore(), [bucket("50/hour", "timed"), bucket("500/hour", "counted")]
    amounts, keys, at_work = [50, 500], ["ann", "bob"], set(range(4))

    def hammer(number: int) -> list[int]:
        admitted = [0, 0]
        try:
            for turn in range(4_000):
                rule = turn % 2
                admitted[rule] += bool(store.hit(((rules[rule], keys[turn // 2 % 2], 1),)))
                if not turn % 50:
                    store.inspect("ann", rules)
        finally:
            at_work.discard(number)
        return admitted

    def reset_until_they_are_done(resets: int = 0) -> list[int]:
        while at_work:
            store.reset_all()
            resets += 1
            time.sleep(0.0001)  # else a reset comes after every hit
        return [resets]

    *admitted, (resets,) = at_once(lambda number: hammer(number) if number < 4 else reset_until_they_are_done(), 5)
    for rule, amount in enumerate(amounts):
        assert sum(by[rule] for by in admitted) <= amount * len(keys) * (resets + 1)
    store.reset_all()
    assert store.key_count() == 0
    for limited, amount in zip(rules, amounts, strict=True):
        assert sum(bool(store.hit(((limited, "ann", 1),))) for _ in range(amount + 10)) == amount
