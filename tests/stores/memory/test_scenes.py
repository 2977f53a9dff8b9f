"""Short scenes that a memory store has to play right. Random programs seldom come to where they lead."""

from slidegate import MemoryStore
from slidegate.core import parse_duration_us
from slidegate.testing import FakeClock

from ...contract.harness import bucket

SECOND_US = 1_000_000


def test_a_known_refusal_ends_when_the_window_changes() -> None:
    """A refund, a reset, another cost, a raised amount: each is answered by what the window holds now."""
    store = MemoryStore()
    for amount in (6, 60):
        asked, raised = bucket(f"{amount}/day @9", str(amount)), bucket(f"{amount + 2}/day @9", str(amount))
        one, two = ((asked, "ann", 1),), ((asked, "ann", 2),)
        for _ in range(amount - 1):
            assert store.hit(one)
        assert not store.hit(two)
        assert not store.hit(two)
        last = store.hit(one)
        assert last
        for _ in range(2):
            assert not store.hit(one)
        assert store.refund(last.take_back())
        assert store.hit(one)
        for spent in (amount, amount + 1):
            for _ in range(2):
                refused = store.hit(one)
                assert not refused
                assert refused.readings[0][0] == spent
            assert store.hit(((raised, "ann", 1),)) or spent > amount + 1
        assert store.reset("ann")
        assert store.hit(one)


def test_a_new_table_wakes_the_sweep() -> None:
    """The windows of a rule that comes later are not left to the rules that are there already."""
    clock = FakeClock()
    store, slow, quick = MemoryStore(clock=clock), bucket("5/day", "slow"), bucket("5/second", "quick")
    store.hit(((slow, "ann", 1),))
    clock.advance("1s")
    store.hit(((quick, "ann", 1),))
    for _ in range(40):  # a table at a time
        clock.advance("1s")
        store.hit(((slow, "ann", 1),))
    assert store.stats().keys == 1


def test_debts_let_go_of_windows_too() -> None:
    """A store that is only ever charged holds no more than one that is hit."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    for number in range(100):
        store.charge(((bucket("5/second"), f"client-{number}", 1),))
        clock.advance("1s")
    assert store.stats().keys < 50, "one table in a second, and each window is seen twice"


def test_a_refund_closes_the_slice_that_it_emptied() -> None:
    """The newest slice that still counts something says when all has left, also where the oldest has left meanwhile."""
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock), bucket("20/60s @10")
    store.hit(((asked, "ann", 1),))
    clock.advance("30s")
    store.hit(((asked, "ann", 1),))
    clock.advance("30s")
    decision = store.hit(((asked, "ann", 1),))
    clock.advance("6s")  # the first has left
    assert store.refund(decision.take_back()) is True
    peeked = store.peek(((asked, "ann", 0),))
    assert (peeked.remaining, peeked.reset_after_us) == (19, 30 * SECOND_US)


def test_a_cost_of_nothing_waits_for_the_lowered_amount() -> None:
    """Under 99 instead of 100, two units have to leave before anything passes, and they are in two slices."""
    clock = FakeClock()
    store, before, after = MemoryStore(clock=clock), bucket("100/60s @10"), bucket("99/60s @10")
    assert store.hit(((after, "ann", 0),))
    for cost in (1, 1, 98):
        store.hit(((before, "ann", cost),))
        clock.advance("6s")
    assert store.hit(((before, "ann", 1),)).retry_after_us == 48 * SECOND_US
    assert store.hit(((after, "ann", 0),)).retry_after_us == 54 * SECOND_US


def test_seconds_are_rounded() -> None:
    """A float that means whole microseconds is mostly a little more or less."""
    assert all(parse_duration_us(span_us / 1_000_000, "window") == span_us for span_us in range(1, 3_000))
