"""The part of the store contract for prepared questions, which must be answered like their checks."""

import pickle

from slidegate import MemoryStore
from slidegate.core import Decision, Question, Reason, Store, parse_address

from .harness import StoreHarness, bucket, with_store
from .player import settle


async def hits(store: Store, question: Question, count: int) -> list[bool]:
    """Ask a question several times; return for each whether it passed."""
    return [bool(await settle(store.ask(question))) for _ in range(count)]


class QuestionsContract:
    """The tests; see `StoreContract`. The defaults, `prepare` which looks nothing up and `ask`, pass them."""

    @with_store()
    async def test_a_prepared_question_is_the_sequence_of_its_checks(self, store: StoreHarness) -> None:
        checks = ((bucket("5/minute"), "ann", 1), (bucket("9/hour", "other"), "bob", 2))
        question = store.raw.prepare(list(checks))
        assert (tuple(question), len(question), question[1]) == (checks, 2, checks[1])
        assert tuple(store.raw.prepare(question)) == checks
        asks = store.raw.ask, store.raw.hit, store.raw.charge
        decisions: list[Decision] = [await settle(ask(question)) for ask in asks]
        for decision in decisions:
            assert tuple(decision.checks) == checks
            copied = pickle.loads(pickle.dumps(decision))
            assert [check[1:] for check in copied.checks] == [check[1:] for check in checks]

    @with_store()
    async def test_bans_of_its_keys_and_subjects_refuse_a_prepared_question(self, store: StoreHarness) -> None:
        checks = ((bucket("9/minute"), "ann", 1), (bucket("9/minute", "other"), "bob", 1))
        address = parse_address("192.0.2.7")
        assert address is not None
        question = store.raw.prepare(checks, ("eve", "192.0.2.7", address))
        for key in ("ann", "bob", "eve", "192.0.2.7", "192.0.2.0/24"):
            assert await hits(store.raw, question, 1) == [True]
            await store.ban(key)
            refused = await settle(store.raw.ask(question))
            assert (refused.reason, refused.ban and refused.ban.key) == (Reason.BANNED, key)
            await store.unban(key)
        await store.ban("dan")
        await store.ban("203.0.113.0/24")
        assert await hits(store.raw, question, 1) == [True]

    @with_store()
    async def test_a_question_that_another_store_prepared_charges_this_one_alone(self, store: StoreHarness) -> None:
        checks = ((bucket("2/minute"), "ann", 1), (bucket("9/minute", "other"), "everyone", 1))
        other = MemoryStore(clock=store.clock)
        for maker in (store.raw, other):
            question = maker.prepare(checks)
            for _ in range(2):  # alternately, so that each store has answered it before
                assert (await settle(store.raw.hit(question))).allowed
                assert other.hit(question).allowed
            assert not await settle(store.raw.hit(question))
            assert not other.hit(question)
            assert await store.reset("ann") is True
            assert not other.hit(question)
            assert other.reset("ann") is True
