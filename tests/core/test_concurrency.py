"""Concurrency limits and places, with time as a number."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import NEVER, OPEN, Bucket, Concurrency
from slidegate.core.concurrency import ENTRY, PermitCounter, apart, entry, in_force
from slidegate.core.decision import Decision, Reason
from slidegate.core.ring import MAX_UNITS

WORKERS = (b"worker 1", b"worker 2", b"worker 3")
LEASE_US = 10
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("spend", "undo", "charge", "remove", "renew")),
        st.sampled_from(WORKERS),
        st.integers(0, 4),
        st.integers(0, 6),
    ),
    max_size=30,
)


@given(st.integers(1, 6), STEPS)
def test_each_worker_changes_its_own_entry_until_it_ends(
    amount: int, steps: Sequence[tuple[str, bytes, int, int]]
) -> None:
    """Compare the bytes with numbers by worker: (until, units)."""
    limit, window, now_us = Concurrency(amount), b"", 0
    model: dict[bytes, tuple[int, int]] = {}
    for what, worker, units, later_us in steps:
        now_us += later_us
        until_us = now_us + LEASE_US
        counter = PermitCounter(limit, worker, until_us)
        model = {name: (end_us, held) for name, (end_us, held) in model.items() if end_us > now_us and held}
        spent, own = sum(held for _, held in model.values()), model.get(worker, (0, 0))[1]
        before = dict(model)
        match what:
            case "spend" | "undo":
                window, state = counter.spend(window, now_us, units)
                has_room = spent + max(units, 1) <= amount
                assert state[3] == (0 if has_room else NEVER if max(units, 1) > amount else OPEN)
                if has_room:
                    model[worker] = until_us, own + units
                assert state[:3] == (spent + units * has_room, 0, 0)
                if what == "undo" and has_room:
                    window = counter.undo(window, units)
                    model[worker] = until_us, own
            case "charge":
                window, kept = counter.charge(window, now_us, units)
                assert kept == units
                model[worker] = until_us, own + units
            case "remove":
                left = counter.remove(window, now_us, 0, units)
                assert (left is None) is (not min(units, own))
                window = in_force(window, now_us) if left is None else left
                model[worker] = (until_us, own - min(units, own)) if left is not None else before.get(worker, (0, 0))
            case "renew":
                window = apart(window, worker, now_us)[0] + entry(worker, until_us, units)
                model[worker] = until_us, units
        expected = {name: entry for name, entry in model.items() if entry[1]}
        assert {name: (end_us, held) for name, end_us, held in ENTRY.iter_unpack(window)} == expected
        own = expected.get(worker, (0, 0))[1]
        taken = sum(held for _, held in expected.values())
        assert apart(window, worker)[1:] == (taken, own)
        assert counter.state(window, now_us, 5) == (taken, 0, 0, 5)
        assert limit.expires_us(window) == max((end_us for end_us, _ in expected.values()), default=0)


def test_no_row_counts_more_than_fits_into_its_entries() -> None:
    counter = Concurrency(2).counter_by(int)
    window, kept = counter.charge(b"", 0, MAX_UNITS)
    assert kept == MAX_UNITS
    assert counter.charge(window, 0, 5) == (window, 0)


def test_a_refusal_shows_the_longest_wait() -> None:
    buckets = [Bucket(name, (Concurrency(1),)) for name in ("ends", "open", "never")]
    readings = [(1, 0, 0, 5), (1, 0, 0, OPEN), (1, 0, 0, NEVER)]
    for last, name in enumerate(("ends", "open", "never")):
        checks = [(bucket, "ann", 1) for bucket in buckets[: last + 1]]
        binding = Decision(False, Reason.LIMITED, 0, checks, readings[: last + 1]).binding
        assert binding.name == name
        assert binding.reset_after_us == binding.more_after_us == 0
