"""The contract of stores, as tests.

    class TestMyStore(StoreContract):
        def make_store(self, clock):
            return MyStore(clock=clock)

`clock` is a `FakeClock`, and must be the only clock that the store reads. Each example creates a new store and closes
it. The methods of a store may return results or awaitables. Tests of abilities that the store lacks are skipped: see
`StoreHarness.needs` and `opener`.
"""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from threading import Barrier
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from slidegate import BanPolicy, ConfigurationError, Decision, Quota, parse_limits
from slidegate.core import Ban, BanSubject, Bucket, Check, Reason, SharedRow, Store, StoreUnavailable, parse_address
from slidegate.core.addresses import canonical_key
from slidegate.core.reservation import reserved
from slidegate.testing import FakeClock, RecordingObserver

from .ban_player import BanPlayer
from .player import Player, as_peek_says, listed, same, settle
from .programs import HOUR_US, KNOWN, SECOND_US, YEAR_2100_US, Choices, Program, drawn, programs

T = TypeVar("T")

POLICY = BanPolicy("3/minute", "10m", factor=2, forgive="1h")
CHECKS: Final = ((Bucket("asked", parse_limits("5/hour")), "user:ann", 1),)
QUESTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: partial(lambda ask, store: getattr(store, ask)(CHECKS), name) for name in ("hit", "peek", "charge")},
    "refund": lambda store: store.refund(reserved(CHECKS, [(1, 0, 1, 0)], [1])),
    "reset": lambda store: store.reset("user:ann"),
    "reset_all": lambda store: store.reset_all(),
    "inspect": lambda store: store.inspect([CHECKS[0]]),
    "find": lambda store: store.bans.find(("user:ann", (4, 7))),
    "strike": lambda store: store.bans.strike(POLICY, "user:ann", 1, "why"),
    "ban": lambda store: store.bans.ban("user:bob", HOUR_US, "why", "ann"),
    "pages": listed,
    "unban": lambda store: store.bans.unban("user:bob", "ann"),
    "load": lambda store: store.bans.load([Ban("user:zoe", "", "ann", 0, 0, None)]),
}
"""A question for each method that every store has."""
SHARED_QUESTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "renew_permits": lambda store: store.renew_permits(),
    "write": lambda store: store.shared_rows.write(b"worker00", SharedRow("5s", 0, b"", 60_000_000)),
    "read": lambda store: store.shared_rows.read("5s", 0, 1),
}
"""Those for methods that stores of several processes have besides."""


class StoreHarness:
    """A store, its clock and its recorded events; every method is awaited.

    Attributes:
        raw: The store itself.
    """

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.raw = store
        self.clock = clock
        self.observer = RecordingObserver()
        store.observe(self.observer)

    def needs(self, ability: str) -> None:
        """Skip the test if the store lacks an ability: an attribute that is not there, or that says no."""
        if not getattr(self.raw, ability, None):
            pytest.skip(f"the store lacks the ability: {ability}")

    async def hit(self, *checks: Check) -> Decision:
        """Charge all checks or none."""
        return await settle(self.raw.hit(checks))

    async def refund(self, decision: Decision) -> bool:
        """Refund what a decision has charged."""
        return await settle(self.raw.refund(decision.begin_refund()))

    async def request(self, client: str, cost: int = 1) -> Decision:
        """Send a request of an address or key that only a ban refuses."""
        parsed = parse_address(client)
        subjects: tuple[BanSubject, ...] = () if parsed is None else (parsed,)
        return await settle(self.raw.hit(((bucket("100/400d"), canonical_key(client), cost),), subjects))

    async def strike(self, key: str, times: int = 1, policy: BanPolicy = POLICY) -> Ban | None:
        """Strike a key several times; return the ban that the last strike made, or None."""
        made = None
        for _ in range(times):
            made = await settle(self.raw.bans.strike(policy, key, 1, "refused"))
        return made

    async def ban(self, key: str, length_us: int | None = HOUR_US) -> Ban:
        """Ban a key as an operator."""
        return await settle(self.raw.bans.ban(key, length_us, "by request", "ann"))

    async def unban(self, key: str) -> bool:
        """Remove a ban."""
        return await settle(self.raw.bans.unban(key, "bob"))


def bucket(limits: str | Quota, rule: str = "rule", *, count_denied: bool = False) -> Bucket:
    """Return the limit set of a rule."""
    return Bucket(rule, parse_limits(limits), count_denied=count_denied)


def with_examples(drawn: SearchStrategy[T], play: Callable[[T], Coroutine[Any, Any, None]], fewer: int = 1) -> None:
    """Play as many examples of a strategy as Hypothesis has to, or so many times fewer, on one event loop."""
    with asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=settings().max_examples // fewer)
        @given(drawn)
        def check(example: T) -> None:
            runner.run(play(example))

        check()


async def in_threads(job: Callable[[], Coroutine[Any, Any, T]]) -> list[T]:
    """Run a job in eight threads at the same time, each with its own event loop; return their results."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        return await asyncio.gather(*(loop.run_in_executor(pool, lambda: asyncio.run(job())) for _ in range(8)))


async def play_to(contract: Any, start_us: int, play: Callable[[StoreHarness], Awaitable[None]]) -> None:
    """Create a store of a contract, run a test with it, and close it."""
    clock = FakeClock(start_us)
    store = await settle(contract.make_store(clock))
    try:
        await play(StoreHarness(store, clock))
    finally:
        await settle(store.close())


def with_store(test: Callable[[Any, StoreHarness], Awaitable[None]]) -> Callable[[Any], None]:
    """Pass a new store to an asynchronous test, and make it callable by pytest, without a plugin."""

    def run(self: Any) -> None:
        asyncio.run(play_to(self, YEAR_2100_US, partial(test, self)))

    run.__name__, run.__doc__ = test.__name__, test.__doc__  # with `wraps`, pytest would see `store` as a fixture
    return run


class RandomContract:
    """The random tests of `StoreContract`, for a store that differs from another by its transport alone.

    Attributes:
        repeats: See `Player`.
    """

    repeats = False

    def make_store(self, clock: FakeClock) -> Store | Awaitable[Store]:
        """Return an empty store that reads the time from `clock`."""
        raise NotImplementedError("make_store(clock) must return an empty store that reads the time from `clock`")

    def test_answers_are_those_of_the_reference(self) -> None:
        """The same questions at the same times get the same decisions, and every window expires as shown."""
        with_examples(programs(), self.play)

    def test_bans_are_those_of_the_reference(self) -> None:
        """Levels, ends and strikes match for any order of strikes, requests, bans, waits and restarts."""
        with_examples(drawn(150, 600), lambda choices: BanPlayer(self.make_store, choices).play())

    async def play(self, program: Program) -> None:
        """Play a program to a new store and to the reference."""
        player = partial(Player, program=program, repeats=self.repeats)
        await play_to(self, program.start_us, lambda store: player(store.raw, store.clock).play())


WORKERS: Final = b"ann00000", b"bob00000"
ROLLUPS: Final = "5s", "5sx", "workers"
NUMBERS: Final = 0, 1, 7, 8, 300


class StatsContract:
    """The tests; see `StoreContract`. They are skipped for a store without shared stats."""

    def test_rows_are_those_of_all_workers_until_their_time_is_over(self) -> None:
        """Each is that of its worker, rollup and number, who replaces it or, with no time, takes it back."""
        play = partial(play_to, self, YEAR_2100_US)
        with_examples(drawn(60, 200), lambda choices: play(partial(_play_rows, choices)), fewer=4)


async def _play_rows(choices: Choices, store: StoreHarness) -> None:
    store.needs("shared_rows")
    stats: Any = store.raw.shared_rows
    rows = dict[tuple[str, int, bytes], tuple[bytes, int]]()
    ahead_us = await settle(stats.time()) - store.clock.now_us
    while choices:
        rollup, number, worker = choices.pick(ROLLUPS), choices.pick(NUMBERS), choices.pick(WORKERS)
        if not choices.below(4):
            store.clock.advance(us=choices.pick((5 * SECOND_US, 1, 5 * SECOND_US - 1)))
        elif choices.below(2):
            value, kept_us = choices.pick((b"", b"\0\xff", b"five")), choices.pick((60, 10, 5, 0, -5)) * SECOND_US
            await settle(stats.write(worker, SharedRow(rollup, number, value, kept_us)))
            rows[rollup, number, worker] = value, store.clock.now_us + kept_us
        now_us, last = store.clock.now_us, choices.pick(NUMBERS)
        expected = [
            (at, by, value)
            for (name, at, by), (value, end_us) in rows.items()
            if name == rollup and number <= at <= last and now_us < end_us
        ]
        same(sorted(await settle(stats.read(rollup, number, last))), sorted(expected))
        same(await settle(stats.time()) - now_us, ahead_us)


LIMITS: Final = {"50/hour": 50, "500/hour": 500}
"""One exact limit, and one that counts in slices."""
POLICIES: Final = tuple(BanPolicy(f"{amount}/hour", "1h", name=f"after {amount}") for amount in (60, 400))
"""One policy that counts exactly, and one that counts in slices."""
_START_S: Final = 60
_barriers: list[Barrier] = []


async def hits(store: Store, checks: Sequence[Check], count: int, subjects: Sequence[BanSubject] = ()) -> list[bool]:
    """Hit a store several times; return for each whether it passed."""
    return [bool(await settle(store.hit(checks, subjects))) for _ in range(count)]


class StoreContract(RandomContract, StatsContract):
    """The tests. A subclass whose name starts with `Test` provides `make_store`."""

    @pytest.mark.parametrize("name", KNOWN)
    def test_answers_are_those_of_the_reference_in_programs_that_once_failed(self, name: str) -> None:
        """Waits, refunds and peeks combined with resets, changed amounts and steps of the clock."""
        asyncio.run(self.play(KNOWN[name]))

    @with_store
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
        assert [view.used for view in await as_peek_says(store.raw, "eve", bucket("3/minute; 3/hour"))] == [0, 0]
        assert await settle(store.raw.inspect(())) == (store.clock.now_us, store.clock.now_us, [])
        await store.hit((bucket(Quota("3/month")), "ann", 3))
        for other in (Quota("3/month", starts=2), Quota("3/month", zone="Asia/Tokyo"), Quota("3/week")):
            assert (await store.hit((bucket(other), "ann", 1))).remaining == 2

    @with_store
    async def test_threads_with_event_loops_of_their_own_admit_exactly_the_amount(self, store: StoreHarness) -> None:
        for limits, keys in (("50/hour", 1), ("500/hour", 1), ("500/hour", 3)):
            together = [(bucket(limits, f"{limits} {keys}-{number}"), "ann", 1) for number in range(keys)]
            counts = await in_threads(partial(hits, store.raw, together, 250))
            assert sum(map(sum, counts)) == together[0][0].limits[0].amount

    @with_store
    async def test_a_thread_without_an_event_loop_gets_its_answer_at_once(self, store: StoreHarness) -> None:
        store.needs("answers_threads")
        decision = await asyncio.to_thread(store.raw.hit, ((bucket("5/hour"), "ann", 1),))
        assert isinstance(decision, Decision)

    @with_store
    async def test_a_closed_store_answers_no_question(self, store: StoreHarness) -> None:
        """Every method raises `StoreUnavailable`, even for keys that were refused or banned before; but `close`."""
        full = (bucket("1/minute"), "bob", 1)
        await store.ban("eve")
        for _ in range(3):
            await store.hit(full)
            await store.request("eve")
        repeated = [[check] for check in (*CHECKS, full)]
        for checks in repeated:
            await settle(store.raw.hit(checks))
        await settle(store.raw.close())
        questions: list[Callable[[], Any]] = [
            *(partial(ask, store.raw) for ask in QUESTIONS.values()),
            *(partial(store.raw.hit, checks) for checks in repeated),
            *(partial(ask, [full]) for ask in (store.raw.hit, store.raw.peek, store.raw.charge)),
            partial(store.request, "eve"),
        ]
        for ask in questions:
            with pytest.raises(StoreUnavailable):
                await settle(ask())

    @with_store
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
        assert 0 < most <= 5  # fewer where a store answers one question after the other
        assert (await store.hit((check[0], "ann", 5))).allowed

    # -- questions, and permits

    @with_store
    async def test_a_decision_has_the_checks_of_its_question(self, store: StoreHarness) -> None:
        checks = ((bucket("5/minute"), "ann", 1), (bucket("9/hour", "other"), "bob", 2))
        asks = store.raw.hit, store.raw.peek, store.raw.charge
        decisions: list[Decision] = [await settle(ask(given)) for ask in asks for given in (checks, [*checks])]
        for decision in decisions:
            assert tuple(decision.checks) == checks
            copied = pickle.loads(pickle.dumps(decision))
            assert [check[1:] for check in copied.checks] == [check[1:] for check in checks]

    @with_store
    async def test_bans_of_its_keys_and_subjects_alone_refuse_a_question(self, store: StoreHarness) -> None:
        """Also one without limits."""
        checks = ((bucket("99/minute"), "ann", 1), (bucket("99/minute", "other"), "bob", 1))
        address = parse_address("192.0.2.7")
        assert address is not None
        subjects = "eve", "192.0.2.7", address
        for others in ("dan", "203.0.113.0/24"):
            await store.ban(others)
        for asked, keys in ((checks, ("ann", "bob", *subjects[:2])), ((), subjects[:2])):
            for key in (*keys, "192.0.2.0/24"):
                assert await hits(store.raw, asked, 1, subjects) == [True]
                await store.ban(key)
                for _ in range(2):
                    refused = await settle(store.raw.hit(asked, subjects))
                    assert (refused.reason, refused.ban and refused.ban.key) == (Reason.BANNED, key)
                await store.unban(key)
            beside, free = await asyncio.gather(*(settle(store.raw.hit(each, subjects)) for each in (checks, asked)))
            assert (beside.reason, free.reason) == (Reason.OK, Reason.OK)

    # -- bans

    @with_store
    async def test_a_strike_that_bans_ends_what_was_known_of_earlier_refusals(self, store: StoreHarness) -> None:
        own = (bucket("1/400d"), "203.0.113.7", 1)
        await store.hit(own)
        assert (await store.hit(own)).reason is Reason.LIMITED
        ban = await store.strike("203.0.113.7", 3)
        assert (await store.hit(own)).ban == ban is not None
        await store.unban("203.0.113.7")
        shorter = await store.ban("203.0.113.0/24", SECOND_US)
        assert (await store.request("203.0.113.7")).ban == shorter
        ban = await store.strike("203.0.113.7", 3)
        assert (await store.request("203.0.113.7")).ban == ban is not None

    @with_store
    async def test_nothing_is_left_of_strikes_after_their_window(self, store: StoreHarness) -> None:
        for after in ("3/minute", "100/minute", "100/7s"):
            policy = BanPolicy(after, name=after)
            await store.strike("user:eve", policy=policy)
            store.clock.advance(us=policy.after.window_us)
            assert not await store.unban("user:eve"), f"they are counted {after}"

    @with_store
    async def test_a_clock_that_is_set_moves_the_ends_of_bans(self, store: StoreHarness) -> None:
        until_us = store.clock.now_us + HOUR_US
        await store.ban("user:eve")
        for step_us in (-86_400 * SECOND_US, 86_400 * SECOND_US, HOUR_US - 1):
            store.clock.advance(us=step_us)
            (ban,) = await listed(store.raw)
            assert ban.until_us == until_us
            assert (await store.request("user:eve")).retry_after_us == until_us - store.clock.now_us
        store.clock.advance(us=1)
        assert await store.request("user:eve")

    @with_store
    async def test_a_thousand_networks_are_banned_and_no_more(self, store: StoreHarness) -> None:
        networks = [f"10.{number // 256}.{number % 256}.0/24" for number in range(1_001)]
        await store.ban(networks[0])
        (ban,) = await listed(store.raw)
        await settle(store.raw.bans.load([ban._replace(key=network) for network in networks[1:-9]]))
        for network in networks[-9:-1]:
            await store.ban(network)
        with pytest.raises(ConfigurationError, match="blocklist"):
            await store.ban(networks[-1])
        assert await store.request("10.3.232.7")
        await store.ban(networks[5], None)  # one that is banned already
        await store.ban("203.0.113.7")  # one client is no network
        bans = await listed(store.raw)
        await store.unban(networks[0])
        await store.ban(networks[-1])
        assert not await store.request("10.3.232.7")
        before = {ban.key for ban in await listed(store.raw)}
        with pytest.raises(ConfigurationError, match="blocklist"):
            await settle(store.raw.bans.load([*reversed(bans)]))
        assert {ban.key for ban in await listed(store.raw)} == before

    @with_store
    async def test_tasks_of_threads_that_cross_the_threshold_make_one_ban(self, store: StoreHarness) -> None:
        async def strike() -> list[Ban]:
            made = await asyncio.gather(*(store.strike("user:eve") for _ in range(200)))
            return [ban for ban in made if ban is not None]

        made = [ban for bans in await in_threads(strike) for ban in bans]
        assert store.observer.kinds == ["banned"]
        assert [ban.level for ban in made] == [1]

    # -- processes

    def opener(self) -> Callable[[], Store] | None:
        """Return a function that opens one initially empty store from several processes, with the real clock.

        Must be picklable, for example ``functools.partial(MyStore, path)``. None if processes cannot share the store.
        """
        return None

    def test_processes_that_ask_at_once_get_exactly_the_amount_and_one_ban_when_both_have_struck(self) -> None:
        opens = self.opener()
        if opens is None:
            pytest.skip("the store lacks the ability: opener (processes that share it)")
        context = get_context("spawn")
        together = context.Barrier(2)
        with ProcessPoolExecutor(2, mp_context=context, initializer=_meet_at, initargs=(together,)) as pool:
            counts = list(pool.map(_ask_at_once, (opens, opens)))
        assert [sum(both) for both in zip(*counts, strict=True)] == [*LIMITS.values(), *[1] * len(POLICIES)], counts


def _meet_at(together: Barrier) -> None:
    """Initialize a process with the barrier at which both wait."""
    _barriers.append(together)


def _ask_at_once(opens: Callable[[], Store]) -> list[int]:
    """Hit and then strike when the other process does; return what passed under each limit, and bans by each policy."""

    async def ask() -> list[int]:
        store, found = opens(), list[int]()
        for limits, amount in LIMITS.items():
            checks = ((bucket(limits, f"rule-{amount}"), "ann", 1),)
            found.append(sum(await hits(store, checks, amount)))
        _barriers[0].wait(_START_S)
        for policy in POLICIES:
            times = policy.after.amount * 3 // 4  # of the strikes that make a ban
            made = [await settle(store.bans.strike(policy, f"user:{policy.name}", 1, "")) for _ in range(times)]
            found.append(sum(ban is not None for ban in made))
        await settle(store.close())
        return found

    _barriers[0].wait(_START_S)
    return asyncio.run(ask())
