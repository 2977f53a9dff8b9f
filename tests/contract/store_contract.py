"""The contract of stores, as tests.

    class TestMyStore(StoreContract):
        def make_store(self, clock):
            return MyStore(clock=clock)

`clock` is a `FakeClock`, and must be the only clock that the store reads. Each example creates a new store and closes
it. The methods of a store may return results or awaitables. Tests of abilities that the store lacks are skipped: see
`harness.ABILITIES` and `opener`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given, settings

from slidegate.core import Decision, Question, Quota, Store, StoreUnavailable, parse_limits
from slidegate.testing import FakeClock

from .ability_contract import PermitsContract, ProcessesContract, QuestionsContract, StatsContract
from .ban_contract import BansContract
from .harness import CHECKS, QUESTIONS, StoreHarness, bucket, in_threads, play_to, with_store
from .player import Player, settle
from .programs import (
    DAY_US,
    SECOND_US,
    YEAR_2100_US,
    Align,
    Ask,
    Change,
    Look,
    Move,
    Program,
    Refund,
    Reset,
    Step,
    programs,
)


def _known(moves: Sequence[Move], limits: str | Quota = "5/minute") -> Program:
    return Program(YEAR_2100_US, (parse_limits(limits),), (False,), [*moves])


def _ask(cost: int, key: str = "ann", patient: bool = False) -> Ask:
    return Ask(((0, key, cost),), patient)


KNOWN: Final = {
    "moments: the wait of a refusal is exact": _known([_ask(1)] * 5 + [_ask(1, patient=True)]),
    "slices: the wait of a refusal is exact": _known([_ask(50), _ask(50), _ask(1, patient=True)], "100/minute"),
    "quotas: a charge of the period before is not refunded": _known(
        [_ask(2), Step(DAY_US), _ask(3), Refund(1), _ask(1)], Quota("9/day")
    ),
    "quotas: a clock that is set back goes on counting in the newer period": _known(
        [Align(DAY_US, SECOND_US), _ask(1), Step(-10 * SECOND_US), _ask(1), _ask(1, patient=True)], Quota("2/day")
    ),
    "a charge after a reset is refunded also under a changed amount": _known(
        [
            *(_ask(1, "bob"), Change(0, 0, 100), _ask(1), Step(SECOND_US), Reset("ann")),
            *(_ask(2), _ask(1), Refund(1), _ask(1)),
        ],
        "1/10s @2",
    ),
    "a look before the clock steps back changes no refund": _known(
        [Look(((0, "ann", 1),)), Step(-10 * SECOND_US), _ask(1), Refund(0)], "1/10s"
    ),
    "a refusal from before a step back of the clock is not repeated": _known(
        [_ask(1), _ask(1), Step(-1), Step(1), _ask(1)], "1/10s"
    ),
    **{
        f"a reset finds the last unit after the amount {before} has become {after}": _known(
            [
                *(Align(3_333_334, 0), _ask(0), Change(0, 0, after), _ask(1), Step(left_us - 1), Reset("ann")),
                *(_ask(1), Step(left_us), Reset("ann")),
            ],
            f"{before}/10s @3",
        )
        for before, after, left_us in ((1, 100, 13_333_336), (100, 1, 10_000_000))
    },
    "a refund takes what is left of a charge after a reset": _known(
        [Align(6 * SECOND_US, 0), _ask(3), Reset("ann"), _ask(2), Refund(1), _ask(1)], "100/minute @10"
    ),
    "a refund empties the newest slice after the oldest has expired": _known(
        [
            *(_ask(1), Step(30 * SECOND_US), _ask(1), Step(30 * SECOND_US), _ask(1)),
            *(Step(6 * SECOND_US), Refund(0), Look(((0, "ann", 0),))),
        ],
        "20/minute @10",
    ),
    "under a lowered amount a cost of 0 waits for the units of two slices": _known(
        [
            *(Change(0, 0, 99), _ask(0), Change(0, 0, 100)),
            *(move for cost in (1, 1, 98) for move in (_ask(cost), Step(6 * SECOND_US))),
            *(_ask(1), Change(0, 0, 99), _ask(0)),
        ],
        "100/minute @10",
    ),
    **{
        f"a known refusal ends when a window of {amount} changes": _known(
            [
                *([_ask(1)] * (amount - 1) + [_ask(2)] * 2 + [_ask(1)] * 3),
                *(Refund(2), _ask(1)),
                *(_ask(1), _ask(1), Change(0, 0, amount + 2), _ask(1), Change(0, 0, amount), _ask(1), _ask(1)),
                *(Change(0, 0, amount + 2), _ask(1), _ask(1), Reset("ann"), _ask(1)),
            ],
            f"{amount}/day @9",
        )
        for amount in (6, 60)
    },
}
"""Programs that once failed, by what they show."""


class StoreContract(
    PermitsContract,
    StatsContract,
    BansContract,
    QuestionsContract,
    ProcessesContract,
):
    """The tests. A subclass whose name starts with `Test` provides `make_store`."""

    def make_store(self, clock: FakeClock) -> Store | Awaitable[Store]:
        """Return an empty store that reads the time from `clock`."""
        raise NotImplementedError("make_store(clock) must return an empty store that reads the time from `clock`")

    def test_answers_are_those_of_the_reference(self) -> None:
        """The same questions at the same times get the same decisions, and every window expires as shown."""
        with asyncio.Runner() as runner:

            @settings(deadline=None)
            @given(programs())
            def check(program: Program) -> None:
                runner.run(self.play(program))

            check()

    @pytest.mark.parametrize("name", KNOWN)
    def test_answers_are_those_of_the_reference_in_programs_that_once_failed(self, name: str) -> None:
        """Waits, refunds and peeks combined with resets, changed amounts and steps of the clock."""
        asyncio.run(self.play(KNOWN[name]))

    async def play(self, program: Program) -> None:
        """Play a program to a new store and to the reference."""

        async def play(store: StoreHarness) -> None:
            await Player(store.raw, store.clock, program).play()

        await play_to(self, program.start_us, play)

    @with_store()
    async def test_keys_rules_windows_and_resolutions_are_counted_apart(self, store: StoreHarness) -> None:
        await store.hit((bucket("3/minute"), "ann", 3))
        for limits, rule, key in (
            ("3/minute", "rule", "bob"),
            ("3/minute", "other", "ann"),
            ("3/61s", "rule", "ann"),
            ("3/minute @10", "rule", "ann"),
        ):
            assert (await store.hit((bucket(limits, rule), key, 1))).remaining == 2
        assert not await store.hit((bucket("3/minute"), "ann", 1))
        await store.hit((bucket(Quota("3/month")), "ann", 3))
        for other in (Quota("3/month", starts=2), Quota("3/month", zone="Asia/Tokyo"), Quota("3/week")):
            assert (await store.hit((bucket(other), "ann", 1))).remaining == 2

    @with_store()
    async def test_threads_with_event_loops_of_their_own_admit_exactly_the_amount(self, store: StoreHarness) -> None:
        for limits, keys in (("50/hour", 1), ("500/hour", 1), ("500/hour", 3)):
            together = [(bucket(limits, f"{limits} {keys}-{number}"), "ann", 1) for number in range(keys)]
            counts = await in_threads(partial(_admitted, store, store.raw.prepare(together)))
            assert sum(counts) == together[0][0].limits[0].amount

    @with_store(ability="answers_threads")
    async def test_a_thread_without_an_event_loop_gets_its_answer_at_once(self, store: StoreHarness) -> None:
        assert isinstance(store.raw.hit(((bucket("5/hour"), "ann", 1),)), Decision)

    @with_store()
    async def test_a_look_changes_nothing_and_finds_nothing_of_strangers(self, store: StoreHarness) -> None:
        limited = bucket("5/minute; 100/hour")
        assert [view.used for view in await store.views("ann", limited)] == [0, 0]
        decision = await store.hit((limited, "ann", 3))
        assert await store.views("ann", limited) == await store.views("ann", limited)
        assert [view.used for view in await store.views("bob", limited)] == [0, 0]
        assert await store.refund(decision) is True
        assert await settle(store.raw.inspect("ann", ())) == (store.clock.now_us, store.clock.now_us, [])

    @with_store()
    async def test_a_closed_store_answers_no_question(self, store: StoreHarness) -> None:
        """Every method raises `StoreUnavailable`, even for keys that were refused or banned before; but `close`."""
        full = (bucket("1/minute"), "bob", 1)
        await store.ban("eve")
        for _ in range(3):
            await store.hit(full)
            await store.request("eve")
        repeated = [store.raw.prepare([check]) for check in (*CHECKS, full)]
        for question in repeated:
            await settle(store.raw.ask(question))
        await settle(store.raw.close())
        questions: list[Callable[[], Any]] = [
            *(partial(ask, store.raw) for ask in QUESTIONS.values()),
            *(partial(store.raw.ask, question) for question in repeated),
            *(partial(ask, [full]) for ask in (store.raw.hit, store.raw.peek, store.raw.charge)),
            partial(store.request, "eve"),
        ]
        for ask in questions:
            with pytest.raises(StoreUnavailable):
                await settle(ask())

    @with_store()
    async def test_no_more_than_the_amount_is_reserved_at_a_time(self, store: StoreHarness) -> None:
        inside = most = 0
        check = (bucket("5/hour"), "ann", 1)

        async def work() -> None:
            nonlocal inside, most
            decision = await store.hit(check)
            if decision:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1
                assert await store.refund(decision) is True

        await asyncio.gather(*(work() for _ in range(500)))
        assert most == 5
        assert (await store.hit((check[0], "ann", 5))).allowed


async def _admitted(store: StoreHarness, question: Question) -> int:
    return sum([bool(await settle(store.raw.ask(question))) for _ in range(250)])
