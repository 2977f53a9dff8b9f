"""The known refusals, which all event loops of a process share."""

import time
from itertools import count
from time import monotonic_ns

from slidegate.core import Bucket, Decision, Reason, parse_limits
from slidegate.stores.redis.clock import StoreTime, monotonic_us
from slidegate.stores.redis.refusals import Refusals

from ...hurry import at_once, hurried

LIMITS = parse_limits("1/hour")
LASTS_US = 10**9
MANY = 200
ROUNDS = 100


def test_a_reset_of_all_keys_while_other_threads_are_refused() -> None:
    refusals, learned, is_over = Refusals(StoreTime(None)), count(), list[bool]()

    def refused() -> None:
        while not is_over:
            checks, now_us = ((Bucket(f"rule {next(learned)}", LIMITS), "ann", 1),), monotonic_us()
            state = (1, now_us + LASTS_US, now_us, LASTS_US)
            decision = Decision(False, Reason.LIMITED, now_us, checks, [state])
            refusals.record(decision, monotonic_ns(), ("ann",))

    def reset() -> None:
        try:
            for _ in range(ROUNDS):
                while len(refusals.cache) < MANY:
                    time.sleep(0)
                refusals.change(((Bucket("rule 0", LIMITS), "ann", 1),))
                refusals.change_all()
        finally:
            is_over.append(True)

    with hurried(collecting=False):
        at_once(lambda thread: refused() if thread else reset(), threads=4)
    assert next(learned) >= MANY * ROUNDS
