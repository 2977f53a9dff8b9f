"""The part of the store contract about looking at windows, and about forgetting all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random

from hypothesis import given, settings

from ...core.concurrency import Concurrency
from ...core.decision import LimitSet
from ...core.limits import parse_limits
from ...core.quotas import Quota
from ...core.store import Store
from ...core.views import WindowView, view_of
from ..clock import FakeClock
from .harness import StoreHarness, bucket, play_to, with_store
from .player import Player, settle
from .programs import SECOND_US, Program, programs

MAX_MOMENTS = 12
"""How many of the moments at which something leaves are looked at, for each key and rule."""


async def views_of(store: Store, key: str, *buckets: LimitSet) -> list[WindowView]:
    """Return the windows of a key under some buckets, as a store shows them."""
    now_us, windows = await settle(store.inspect(key, buckets))
    named = [(made, name, limit) for made in buckets for name, limit in zip(made.names, made.limits, strict=True)]
    return [
        view_of(made.rule, made.label, name, limit, window, now_us)
        for (made, name, limit), window in zip(named, windows, strict=True)
    ]


async def as_peek_says(store: Store, key: str, *buckets: LimitSet) -> list[WindowView]:
    """Return the windows of a key, and see that they say what a peek says about each of them."""
    views = await views_of(store, key, *buckets)
    peeked = [await settle(store.peek(((made, key, 0),))) for made in buckets]
    states = [(decision, place) for decision in peeked for place in range(len(decision.readings))]
    for view, (decision, place) in zip(views, states, strict=True):
        state = decision.states[place]
        assert view.used == decision.readings[place][0]
        assert not view.slices or sum(part.units for part in view.slices) == view.used
        shown = view.name, view.rule, view.limit, view.remaining, view.more_after_us, view.reset_after_us
        assert shown == (state.name, state.rule, *state[3:5], *state[6:8])
    return views


class InspectContract:
    """The tests; see `StoreContract`."""

    def make_store(self, clock: FakeClock) -> Store | Awaitable[Store]:
        """Return an empty store that tells the time by `clock`."""
        raise NotImplementedError

    def test_windows_are_shown_as_a_peek_reads_them_and_empty_as_they_say(self) -> None:
        """After any history, slices add up to the units used, and leave at the moments that they name."""
        with asyncio.Runner() as runner:

            @settings(deadline=None, max_examples=40)
            @given(programs())
            def check(program: Program) -> None:
                runner.run(self.play(program, looks=True))

            check()

    async def play(self, program: Program, *, looks: bool = False) -> None:
        """Play a program to a new store and to the reference; if it `looks`, see all windows empty afterwards."""

        async def play(store: StoreHarness) -> None:
            player = Player(store.raw, store.clock, program.rules, program.count_denied)
            await player.play(program.moves)
            if looks:
                await player.look_after_all()  # a changed amount moves units once, when its window is asked
                for rule, key in sorted(player.named):
                    await _see_it_empty(store, key, player.plain[rule])

        await play_to(self, program.start_us, play)

    @with_store()
    async def test_slices_of_counts_and_moments_of_times_are_where_units_were_spent(self, store: StoreHarness) -> None:
        start_us = store.clock.now_us - store.clock.now_us % (60 * SECOND_US)
        counted, timed = bucket("100/minute @6", "counted"), bucket("5/minute", "timed")
        for second, cost in ((0, 1), (9, 2), (10, 1), (35, 1)):
            store.clock.set(start_us + 60 * SECOND_US + second * SECOND_US)
            await store.hit((counted, "ann", cost), (timed, "ann", cost))
        counts, times = await as_peek_says(store.raw, "ann", counted, timed)
        at = [(part.start_us - start_us) // SECOND_US for part in counts.slices]
        assert at == [30, 40, 50, 60, 70, 80, 90]
        assert [part.units for part in counts.slices] == [0, 0, 0, 3, 1, 0, 1]
        assert {part.end_us - part.start_us for part in counts.slices} == {10 * SECOND_US}
        assert {part.leaves_us - part.start_us for part in counts.slices} == {70 * SECOND_US}
        moments = [((part.start_us - start_us) // SECOND_US - 60, part.units) for part in times.slices]
        assert moments == [(0, 1), (9, 2), (10, 1), (35, 1)]
        assert all(part.end_us == part.start_us for part in times.slices)
        assert (times.used, times.remaining, times.retry_after_us) == (5, 0, 25 * SECOND_US)
        assert (counts.used, counts.remaining, counts.retry_after_us) == (5, 95, 0)

    @with_store()
    async def test_a_look_changes_nothing_and_finds_nothing_of_strangers(self, store: StoreHarness) -> None:
        asked = bucket("5/minute; 100/hour")
        assert [(view.used, view.slices) for view in await as_peek_says(store.raw, "ann", asked)] == [(0, ())] * 2
        decision = await store.hit((asked, "ann", 3))
        shown = await as_peek_says(store.raw, "ann", asked)
        assert shown == await as_peek_says(store.raw, "ann", asked)
        assert [view.used for view in await as_peek_says(store.raw, "bob", asked)] == [0, 0]
        assert await store.refund(decision) is True
        assert [view.used for view in await as_peek_says(store.raw, "ann", asked)] == [0, 0]
        assert await settle(store.raw.inspect("ann", ())) == (store.clock.now_us, [])

    @with_store()
    async def test_quotas_are_shown_too(self, store: StoreHarness) -> None:
        plan = LimitSet("plan", parse_limits(Quota("100/day")))
        await store.hit((plan, "ann", 30))
        (view,) = await as_peek_says(store.raw, "ann", plan)
        ((start_us, end_us, leaves_us, count),) = view.slices
        assert (count, leaves_us, end_us - start_us) == (30, end_us, 86_400 * SECOND_US)
        assert start_us <= store.clock.now_us < end_us

    @with_store(ability="permits_held")
    async def test_permits_are_shown_too(self, store: StoreHarness) -> None:
        held = LimitSet("held", (Concurrency(2),))
        first = await store.hit((held, "ann", 1))
        assert (await views_of(store.raw, "ann", held))[0][4:7] == (1, 1, 0)
        second = await store.hit((held, "ann", 1))
        (view,) = await views_of(store.raw, "ann", held)
        assert (view.used, view.remaining, view.retry_after_us, view.slices) == (2, 0, None, ())
        await store.refund(first)
        await store.refund(second)

    @with_store()
    async def test_reset_all_forgets_every_window_and_hands_no_earlier_charge_back(self, store: StoreHarness) -> None:
        assert await store.reset_all() is False
        rules = [bucket("5/minute", "timed"), bucket("100/minute", "counted"), bucket("5/minute; 9/hour", "both")]
        early = [await store.hit((rule, key, 5)) for rule in rules for key in ("ann", "bob")]
        assert not await store.hit((rules[0], "ann", 1))
        assert await store.reset_all() is True
        for rule in rules:
            for key in ("ann", "bob"):
                assert {view.used for view in await as_peek_says(store.raw, key, rule)} == {0}
                assert (await store.hit((rule, key, 4))).allowed
        assert [await store.refund(decision) for decision in early] == [False] * len(early)
        assert (await store.peek((rules[0], "ann", 0))).remaining == 1

    @with_store()
    async def test_reset_all_lets_bans_stay(self, store: StoreHarness) -> None:
        await settle(store.raw.bans.ban("eve", None, "manual", "test"))
        await store.hit((bucket("5/minute"), "ann", 5))
        assert await store.reset_all() is True
        assert (await store.hit((bucket("5/minute"), "eve", 1))).ban is not None

    @with_store(ability="permits_held")
    async def test_reset_all_lets_permits_stay(self, store: StoreHarness) -> None:
        held = LimitSet("held", (Concurrency(1),))
        permit = await store.hit((held, "ann", 1))
        await store.hit((bucket("5/minute"), "ann", 5))
        assert await store.reset_all() is True
        assert not await store.hit((held, "ann", 1))
        assert await store.refund(permit) is True
        assert await store.hit((held, "ann", 1))

    @with_store()
    async def test_reset_all_forgets_quotas(self, store: StoreHarness) -> None:
        plan = LimitSet("plan", parse_limits(Quota("100/day")))
        early = await store.hit((plan, "ann", 30))
        assert await store.reset_all() is True
        assert (await store.hit((plan, "ann", 1))).remaining == 99
        assert await store.refund(early) is False

    @with_store()
    async def test_reset_all_between_any_hits_leaves_what_comes_after(self, store: StoreHarness) -> None:
        random = Random(16)
        rules = [bucket("9/minute", "timed"), bucket("200/minute", "counted")]
        used: dict[tuple[int, str], int] = {}
        for _ in range(60):
            if random.random() < 0.1:
                await store.reset_all()
                used.clear()
            place = random.randrange(2), random.choice("abc")
            if (await store.hit((rules[place[0]], place[1], 1))).allowed:
                used[place] = used.get(place, 0) + 1
        for rule in range(2):
            for key in "abc":
                (view,) = await as_peek_says(store.raw, key, rules[rule])
                assert view.used == used.get((rule, key), 0)


async def _see_it_empty(store: StoreHarness, key: str, asked: LimitSet) -> None:
    """See that every unit leaves at the moment that its slice names, and none before."""
    shown = await as_peek_says(store.raw, key, asked)
    moments = sorted({part.leaves_us for view in shown for part in view.slices if part.units})
    for moment_us in [step for us in moments[:MAX_MOMENTS] for step in (us - 1, us)]:
        if moment_us <= store.clock.now_us:
            continue
        store.clock.set(moment_us)
        for view, now in zip(shown, await as_peek_says(store.raw, key, asked), strict=True):
            assert now.used == sum(part.units for part in view.slices if part.leaves_us > moment_us)
