"""Amounts that change while they are counted by; the contract of stores has them among the moves of its programs."""

from slidegate import MemoryStore, Quota
from slidegate.core import Bucket, Concurrency, Limit

from ..hurry import at_once


def test_hits_of_several_threads_pass_no_more_than_the_largest_amount() -> None:
    store, bucket = MemoryStore(), Bucket("api", [Limit(50, "1h", resolution=64)])
    question, at_work = store.prepare([(bucket, "ann", 1)]), {*range(4)}

    def work(number: int) -> int:
        while number == 4 and at_work:
            for amount in (300, 10, 64, 65, 200):  # exact or not
                bucket.limits[0].become(amount)
        try:
            return sum(store.ask(question).allowed for _ in range(4_000 if number < 4 else 0))
        finally:
            at_work.discard(number)

    admitted = sum(at_once(work, 5))
    bucket.limits[0].become(300)
    while store.ask(question):
        admitted += 1
    assert admitted == 300


def test_what_a_user_made_never_changes() -> None:
    made = [Limit(5, "1m", resolution=10, name="burst"), Quota("10/day"), Concurrency(3)]
    texts, hashes, bucket = [*map(str, made)], [*map(hash, made)], Bucket("api", made)
    derived = bucket.under("other")
    for one, given in zip(bucket.limits, made, strict=True):
        assert (one, str(one), hash(one)) == (given, str(given), hash(given))
        one.become(2)
        assert one != given
        assert (one.name, one.same_window) == (given.name, given.same_window)
    assert ([*map(str, made)], [*map(hash, made)]) == (texts, hashes)
    assert [one.amount for one in bucket.limits + derived.limits] == [2] * 6
