"""The part of the store contract for permits, which limit the concurrent requests of a key."""

import random

from slidegate.core import Bucket, Check, Concurrency, Decision, Reason

from .harness import StoreHarness, bucket, with_store
from .player import views_of
from .programs import SECOND_US


def permits(amount: int, rule: str = "rule") -> Bucket:
    """Return the limit set of a concurrency limit."""
    return Bucket(rule, (Concurrency(amount),))


class PermitsContract:
    """The tests; see `StoreContract`. They are skipped for a store without permits."""

    @with_store(ability="permits_held")
    async def test_a_permit_is_taken_until_it_is_handed_back(self, store: StoreHarness) -> None:
        check = (permits(2), "ann", 1)
        first = await store.hit(check)
        (view,) = await views_of(store.raw, "ann", check[0])
        assert (view.used, view.remaining, view.retry_after_us) == (1, 1, 0)
        second = await store.hit(check)
        assert [(d.allowed, d.reason, d.remaining) for d in (first, second)] == [
            (True, Reason.OK, 1),
            (True, Reason.OK, 0),
        ]
        refused = await store.hit(check)
        assert (refused.allowed, refused.reason, refused.retry_after_us) == (False, Reason.LIMITED, None)
        assert (refused.retry_after, refused.reset_after_us, refused.remaining) == (None, 0, 0)
        (view,) = await store.views("ann", check[0])
        assert (view.used, view.remaining, view.retry_after_us) == (2, 0, None)
        assert (view.more_after_us, view.reset_after_us) == (0, 0), "nobody knows when a permit ends"
        store.clock.advance("1s")
        assert not await store.hit(check), "a second frees nothing"
        assert await store.refund(first) is True
        third = await store.hit(check)
        assert (third.allowed, third.remaining) == (True, 0)
        assert not await store.hit(check)
        assert await store.refund(refused) is False
        assert store.raw.permits_held() == 2, "a permit is held as long as its decision is there"
        assert (await store.hit((check[0], "bob", 1))).remaining == 1, "each key has permits of its own"

    @with_store(ability="permits_held")
    async def test_a_question_may_need_several_permits_or_only_that_one_is_free(self, store: StoreHarness) -> None:
        decisions = [await store.hit((permits(2), "ann", cost)) for cost in (0, 3, 2, 0)]
        reasons = [decision.reason for decision in decisions]
        assert reasons == [Reason.OK, Reason.TOO_LARGE, Reason.OK, Reason.LIMITED]
        assert (decisions[0].remaining, store.raw.permits_held()) == (2, 2)
        assert await store.refund(decisions[2]) is True
        assert (await store.hit((permits(2), "ann", 0))).remaining == 2

    @with_store(ability="permits_held")
    async def test_permits_and_windows_are_charged_together_or_not_at_all(self, store: StoreHarness) -> None:
        window, held = (bucket("3/minute", "both"), "ann", 1), (permits(1, "both"), "ann", 1)
        first = await store.hit(window, held)
        assert [state.remaining for state in first.states] == [2, 0]
        refused = await store.hit(window, held)
        assert (refused.reason, refused.retry_after_us) == (Reason.LIMITED, None)
        assert [state.remaining for state in refused.violated] == [0]
        assert (await store.peek(window)).remaining == 1, "a refusal for lack of a permit charges no window"
        assert await store.refund(first, 1) is True
        second = await store.hit((window[0], "ann", 2), held)
        assert await store.refund(second, 1) is True
        spent = await store.hit(window, held)
        assert (spent.retry_after_us, spent.reason) == (60 * SECOND_US, Reason.LIMITED)
        assert store.raw.permits_held() == 0, "a refusal by a window takes no permit"

    @with_store(ability="permits_held")
    async def test_the_units_of_a_decision_stay_when_its_permits_are_released_and_return_alone(
        self, store: StoreHarness
    ) -> None:
        window, held = (bucket("3/minute", "both"), "ann", 1), (permits(1, "both"), "ann", 1)
        decision = await store.hit(window, held)
        await _release(store, decision)
        assert store.raw.permits_held() == 0
        assert [state.remaining for state in decision.states] == [2, 1]
        other = await store.hit(window, held)
        assert await store.refund(decision) is True
        assert (other.allowed, store.raw.permits_held()) == (True, 1)
        assert (await store.peek(window)).remaining == 1

    @with_store(ability="permits_held")
    async def test_an_amount_that_changes_keeps_what_is_taken(self, store: StoreHarness) -> None:
        taken = [await store.hit((permits(3), "ann", 1)) for _ in range(3)]
        assert not await store.hit((permits(2), "ann", 1))
        fourth = await store.hit((permits(4), "ann", 1))
        assert fourth.remaining == 0
        assert [await store.refund(decision) for decision in taken] == [True] * 3
        assert (await store.hit((permits(2), "ann", 1))).remaining == 0

    @with_store(ability="permits_held")
    async def test_never_more_permits_than_there_are_in_any_order_of_events(self, store: StoreHarness) -> None:
        for seed in range(5):
            try:
                await _play(store, random.Random(seed))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
        assert store.raw.permits_held() == 0


async def _play(store: StoreHarness, chance: random.Random) -> None:
    """Acquire, peek, reset and release at random, and compare with a simple count, which no reset changes."""
    amounts = {"one": 1, "few": 3, "many": 40}
    buckets = {rule: permits(amount, rule) for rule, amount in amounts.items()}
    window = bucket("1000/minute", "window")
    under_way: list[tuple[Decision, list[tuple[str, str]]]] = []
    for _ in range(200):
        store.clock.advance(us=chance.randrange(20_000))
        match chance.randrange(8):
            case 0 | 1 | 2 | 3:
                key = chance.choice(("ann", "bob"))
                rules = chance.sample(sorted(amounts), chance.randint(1, 3))
                checks: list[Check] = [(buckets[rule], key, 1) for rule in rules]
                if chance.random() < 0.3:
                    checks.insert(chance.randrange(len(checks) + 1), (window, key, 1))
                looked, decision = await store.peek(*checks), await store.hit(*checks)
                held = [one for _, taken in under_way for one in taken]
                fits = all(held.count((rule, key)) < amounts[rule] for rule in rules)
                assert looked.allowed is decision.allowed is fits
                if decision.allowed:
                    under_way.append((decision, [(rule, key) for rule in rules]))
            case 4:
                await (store.reset_all() if chance.random() < 0.3 else store.reset(chance.choice(("ann", "bob"))))
            case _ if under_way:
                decision, _ = under_way.pop(chance.randrange(len(under_way)))
                await _release(store, decision, at_once=chance.random() < 0.5)
    for decision, _ in under_way:
        await _release(store, decision)


async def _release(store: StoreHarness, decision: Decision, *, at_once: bool = True) -> None:
    """Release the permits of a decision at once, as the middleware does if the store can, else one by one."""
    is_released = at_once and store.raw.release(decision)
    for index, (limited, _, _) in enumerate(decision.checks):
        if limited.is_permit:
            assert [await store.refund(decision, index) for _ in range(2)] == [not is_released, False]
    assert not store.raw.release(decision)
