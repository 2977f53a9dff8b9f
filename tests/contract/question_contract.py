"""The part of the store contract for prepared questions, which must be answered like their checks."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from slidegate import MemoryStore
from slidegate.core import Check, Decision, Reason, Store

from .harness import StoreHarness, bucket, with_store
from .player import settle


async def hits(store: Store, asked: Sequence[Check], count: int) -> list[bool]:
    """Hit with a question several times; return for each whether it passed."""
    return [bool(await settle(store.hit(asked))) for _ in range(count)]


class QuestionsContract:
    """The tests; see `StoreContract`. The default `prepare`, which prepares nothing, passes them."""

    @with_store()
    async def test_a_prepared_question_is_the_sequence_of_its_checks(self, store: StoreHarness) -> None:
        checks = ((bucket("5/minute"), "ann", 1), (bucket("9/hour", "other"), "bob", 2))
        asked = store.raw.prepare(list(checks))
        assert (tuple(asked), len(asked), asked[1]) == (checks, 2, checks[1])
        assert tuple(store.raw.prepare(asked)) == checks
        decisions: list[Decision] = [await settle(ask(asked)) for ask in (store.raw.hit, store.raw.charge)]
        for decision in decisions:
            assert (tuple(decision.checks), [state.cost for state in decision.states]) == (checks, [1, 2])
            copied = pickle.loads(pickle.dumps(decision))
            assert [check[1:] for check in copied.checks] == [check[1:] for check in checks]

    @with_store()
    async def test_a_prepared_question_outlives_resets_bans_and_its_windows(self, store: StoreHarness) -> None:
        checks = ((bucket("2/minute"), "ann", 1),)
        asked = store.raw.prepare(checks)
        assert await hits(store.raw, asked, 3) == [True, True, False]
        await store.reset("ann")
        assert await hits(store.raw, asked, 3) == [True, True, False]
        await store.reset_all()
        assert await hits(store.raw, asked, 1) == [True]
        await store.ban("ann")
        assert (await settle(store.raw.hit(asked))).reason is Reason.BANNED
        await store.unban("ann")
        assert await hits(store.raw, asked, 2) == [True, False]
        for _ in range(5):  # so that the store drops expired windows
            store.clock.advance("1h")
            await store.hit((bucket("2/minute", "another"), "bob", 1))
        assert await hits(store.raw, checks, 1) == [True]
        assert await hits(store.raw, asked, 2) == [True, False]

    @with_store()
    async def test_a_question_that_another_store_prepared_charges_this_one_alone(self, store: StoreHarness) -> None:
        checks = ((bucket("2/minute"), "ann", 1), (bucket("9/minute", "other"), "everyone", 1))
        other = MemoryStore(clock=store.clock)
        for maker in (store.raw, other):
            asked = maker.prepare(checks)
            for _ in range(2):  # alternately, so that each store has answered it before
                assert (await settle(store.raw.hit(asked))).allowed
                assert other.hit(asked).allowed
            assert not await settle(store.raw.hit(asked))
            assert not other.hit(asked)
            assert await store.reset("ann") is True
            assert not other.hit(asked)
            assert other.reset("ann") is True
