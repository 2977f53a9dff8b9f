"""The memory store: the contract, threads, and how little it keeps; bans; and that no keys of one hash fill a dict."""

import gc
import itertools
import json
import random
import signal
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from slidegate import BanPolicy, Limit, Limiter, MemoryStore, Quota, RateLimitMiddleware, client_ip, parse_limits
from slidegate.core import AnyLimit, Bucket, Concurrency, Reason, parse_address
from slidegate.core.addresses import format_network
from slidegate.stores.system_clock import SYSTEM
from slidegate.testing import FakeClock, RecordingObserver

from ...asgi import call, hello
from ...contract import StoreContract
from ...contract.programs import HOUR_US, SECOND_US, YEAR_2100_US
from ...contract.store_contract import bucket
from ...hurry import PATIENCE_S, at_once, hurried
from ...turns import interrupted, turning_locks
from ..conftest import Opened

COMMON = Bucket("everyone", parse_limits("1000000/hour"))
LIMITED = bucket("5/minute")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def wall() -> FakeClock:
    return FakeClock(YEAR_2100_US)


@pytest.fixture
def opened(clock: FakeClock, wall: FakeClock, opened_as: Opened) -> Opened:
    """Make stores whose windows go by `clock`, and bans by `wall`."""
    return partial(opened_as, "memory", clock=clock, wall_clock=wall)


class TestContract(StoreContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


class Hesitant(str):
    """A key that lets other threads go first between looking at a window and changing it."""

    def __hash__(self) -> int:
        time.sleep(0)  # no pause: it hands the interpreter to another thread
        return super().__hash__()


def test_sixteen_threads_that_ask_for_many_keys_at_once_wait_for_nobody_for_ever(rng: random.Random) -> None:
    """Each asks for keys of several shards in any order, while limits come and go; all that passes is within them."""
    store, keys = MemoryStore(), [Hesitant(f"client-{number}") for number in range(40)]
    admitted: Counter[str] = Counter()
    together, counting = Bucket("together", parse_limits("25/hour; 30/day")), threading.Lock()
    seeds = [rng.random() for _ in range(16)]

    def work(thread: int) -> None:
        dice = random.Random(seeds[thread])
        for number in range(150):
            chosen = dice.sample(keys, dice.randint(1, 4))
            decision = store.hit([(together, key, 1) for key in chosen])
            store.hit(((bucket("1/second", f"rule-{number}"), chosen[0], 1),))
            if decision and dice.random() < 0.3:
                assert store.refund(decision.begin_refund())
            elif decision:
                with counting:
                    admitted.update(chosen)

    with hurried(collecting=False):
        at_once(work, threads=16)
    assert max(admitted.values()) <= 25
    assert sum(admitted.values()) > 500
    spent = {key: 25 - (store.peek(((together, key, 0),)).states[0].remaining) for key in keys}
    assert spent == {key: admitted[key] for key in keys}, "nothing is lost, and nothing counted twice"


@pytest.mark.parametrize("first", ["the hit", "the reset"])
def test_a_reset_of_all_keys_finds_no_hit_half_done_wherever_one_of_them_comes(first: str) -> None:
    limited = [bucket(limits, limits) for limits in ("2/hour", "90/hour")]  # one exact, one that counts in slices
    checks, stores = [(each, key, 1) for each in limited for key in ("ann", "bob", "eve", "kim")], list[MemoryStore]()

    def begin() -> list[Callable[[], object]]:
        stores.append(store := MemoryStore())
        acts = [lambda: store.hit(checks), store.reset_all]
        return acts if first == "the hit" else acts[::-1]

    with turning_locks():
        for point in interrupted(begin, ["memory/store.py", "memory/shard.py"]):
            store = stores.pop()
            assert len({state.used for state in store.peek([(*each[:2], 0) for each in checks]).states}) == 1, point
            store.reset_all()
            assert store.key_count() == 0, point
            assert [bool(store.hit(checks)) for _ in range(3)] == [True, True, False], point


@pytest.mark.parametrize("what", ["hit", "charge"])
@pytest.mark.parametrize("limits", ["5/s", "40/s @10", "5/s; 100/minute"])
def test_what_is_overtaken_has_no_time_of_before(what: str, limits: str) -> None:
    """It would move units that others have spent since back to it, so that they leave too early."""
    limited, begun = bucket(limits), list[tuple[MemoryStore, FakeClock]]()
    most = limited.limits[0].amount

    def begin() -> list[Callable[[], object]]:
        begun.append(((store := MemoryStore(clock=(clock := FakeClock(10**12)))), clock))

        def pass_by() -> None:
            clock.advance("500ms")
            assert store.hit(((limited, "ann", most - 1),))

        return [lambda: getattr(store, what)(((limited, "ann", 1),)), pass_by]

    with turning_locks():
        for point in interrupted(begin, ["memory/store.py"]):
            store, clock = begun.pop()
            clock.advance("600ms")  # after which what `pass_by` has spent counts on
            assert not [store.hit(((limited, "ann", 1),)) for _ in "12"][-1], point


def test_a_clock_that_fails_leaves_the_store_free() -> None:
    fails = False
    store, limited = MemoryStore(clock=lambda: 1 // (not fails)), bucket("5/minute")
    decision = store.hit(((limited, "ann", 1),))
    charged = decision.begin_refund()
    for ask in (lambda: store.hit(decision.checks), lambda: store.peek(decision.checks), lambda: store.refund(charged)):
        fails = True
        with pytest.raises(ZeroDivisionError):
            ask()
        fails = False
        assert ask(), "and the next one does not wait for it"


def test_a_sweep_lets_no_live_window_go_where_the_clock_ran_back(store: MemoryStore, clock: FakeClock) -> None:
    limited = bucket("1/10s")
    store.hit(((limited, "first", 1),))
    clock.advance("18s")
    keys = [f"client-{number}" for number in range(100)]
    assert store.hit([(limited, key, 1) for key in keys])  # all shards are due, and this call sweeps one
    for step_s in (-6, 11):
        clock.advance(us=step_s * SECOND_US)
        for _ in range(50):
            store.hit(((COMMON, "all", 1),))
    assert not any(store.peek(((limited, key, 1),)) for key in keys), "they count until second 28; it is second 23"


@pytest.mark.parametrize("order", ["5/second; 1000/hour", "1000/hour; 5/second"])
def test_idle_keys_of_a_long_window_go_although_a_short_one_empties_again_and_again(order: str) -> None:
    clock = FakeClock()
    store, limited = MemoryStore(clock=clock), bucket(order)
    for number in range(5_000):
        store.hit(((limited, f"client-{number}", 1),))
    for _ in range(4_000):  # 133 minutes: a window goes once nobody has asked for it during its life
        clock.advance("2s")
        store.hit(((limited, "ann", 1),))
    assert store.key_count() <= 2
    for _ in range(9):  # some of the windows are those of an earlier generation
        store.hit(((limited, "ann", 1),))
        clock.advance("30m")
        store.hit(((limited, "bob", 1),))
        store.reset_all()
        assert store.key_count() == 0


def test_a_reset_goes_on_where_another_thread_adds_a_limit() -> None:
    """Up to CPython 3.11 the collector may let one in while a list of the limits is made."""
    store, added = MemoryStore(max_keys=10), 0
    limited = [bucket("5/minute", f"rule-{number}") for number in range(200)]
    store.hit([(each, "ann", 1) for each in limited])

    def add(phase: str, info: dict[str, int]) -> None:
        nonlocal added
        added += 1
        store.hit(((bucket("5/minute", f"another-{added}"), "bob", 1),))

    gc.callbacks.append(add)
    before, kept = gc.get_threshold(), [(number, number) for number in range(5_000)]  # no pair is left to be used again
    gc.set_threshold(1)
    try:
        assert store.reset("ann")
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(add)
    assert added or sys.version_info >= (3, 12)
    assert kept


def test_looking_and_handing_back_make_no_windows(store: MemoryStore) -> None:
    store.peek(((LIMITED, "ann", 1),))
    assert store.refund(store.hit(((LIMITED, "bob", 9),)).begin_refund()) is False, "it was refused"
    assert store.reset("eve") is False
    assert store.key_count() <= 1


def test_windows_go_by_the_monotonic_clock_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_ns, store, question = FakeClock(10**15), MemoryStore(), ((LIMITED, "ann", 5),)
    monkeypatch.setattr(SYSTEM, "monotonic_ns", steady_ns)
    assert store.hit(question)
    for left_s in (60, 50, 40):
        assert store.hit(question).retry_after_us == left_s * SECOND_US
        steady_ns.advance(us=10 * 10**9)  # nanoseconds


def calls_of(act: Callable[[], object]) -> int:
    made = list[bool]()
    sys.setprofile(lambda frame, event, arg: made.append(event in ("call", "c_call")))
    try:
        act()
    finally:
        sys.setprofile(None)
    return sum(made)


@pytest.mark.parametrize("limit", [Limit(5, "1m"), Quota("5/day"), Concurrency(5)], ids=repr)
def test_no_hit_looks_at_many_keys_to_find_those_that_go(limit: AnyLimit) -> None:
    clock = FakeClock(10**15)
    store, limited = MemoryStore(max_keys=6_000, clock=clock), Bucket("rule", [limit])
    for number in range(9_000):  # a third of them count in shared cells
        decision = store.hit(((limited, f"client-{number}", 1),))
        assert store.refund(decision.begin_refund()) or decision.reason is Reason.LIMITED
    longest = 0
    for _ in range(40):
        clock.advance("1h")
        longest = max(longest, *(calls_of(lambda: store.hit(((COMMON, "all", 1),))) for _ in range(60)))
    assert longest < 5_000, "calls of functions in one hit"
    assert store.key_count() == 1


# -- short scenes; random programs seldom come to where they lead ------------------------------------------------------


@pytest.mark.parametrize("way", ["hit", "charge"])
def test_a_new_table_wakes_the_sweep(store: MemoryStore, clock: FakeClock, way: str) -> None:
    """The windows of a rule that comes later are not left to the rules that are there already."""
    ask, slow, quick = getattr(store, way), bucket("99/day", "slow"), bucket("5/second", "quick")
    ask(((slow, "ann", 1),))
    clock.advance("1s")
    ask(((quick, "ann", 1),))
    for _ in range(40):  # a table at a time
        clock.advance("1s")
        ask(((slow, "ann", 1),))
    assert store.key_count() == 1


def test_thousands_of_rules_are_gone_when_their_windows_are(store: MemoryStore, clock: FakeClock) -> None:
    for number in range(4_000):
        store.hit(((bucket("5/second", f"rule-{number}"), "ann", 1),))
    for _ in range(2):  # a window goes when nobody has used it for a second after a sweep
        clock.advance("2s")
        for _ in range(150):
            store.hit(((LIMITED, "ann", 1),))
    assert store.key_count() == 1
    assert list(store._tables) == [(LIMITED.name, LIMITED.limits[0].same_window)]


@pytest.mark.parametrize("shards", [1, 16])
def test_a_sweep_of_a_rule_with_many_keys_takes_short_steps_and_forgets_no_shard(shards: int, clock: FakeClock) -> None:
    store, keys = MemoryStore(max_keys=8_192 * shards - 1, clock=clock), 300 * shards
    for number in range(keys):
        store.hit(((LIMITED, f"client-{number}", 1),))
    counts = [store.key_count()]
    for _ in range(2):
        clock.advance("2m")
        for _ in range(100):
            store.hit(())
            counts.append(store.key_count())
    assert counts[100] == keys, "they had been used when the first sweep came"
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 1_024
    assert counts[-1] == 0


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signal interrupts a lock here")
@pytest.mark.parametrize("keys", [("ann",), ("ann", "bob", "eve", "kim", "zoe")])
def test_a_thread_that_is_interrupted_in_a_wait_leaves_locks_free(store: MemoryStore, keys: tuple[str, ...]) -> None:
    """And gets nothing but the interrupt, which a signal handler has raised."""
    checks, last = [(LIMITED, key, 1) for key in keys], store._locks[max(map(store._shard_of, keys))]
    waits = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with ThreadPoolExecutor(1) as other:
        other.submit(last.acquire).result()
        waits.start()
        with pytest.raises(KeyboardInterrupt) as raised:
            store.hit(checks)
        other.submit(last.release).result()
        assert raised.value.__context__ is None
        assert other.submit(store.hit, checks).result(PATIENCE_S)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("limits", ["10/minute", "1000/minute"])
def test_huge_debts_and_endless_hammering_need_no_memory(store: MemoryStore, limits: str) -> None:
    counting = bucket(limits, count_denied=True)
    store.charge(((counting, "ann", 10**30),))
    tracemalloc.start()
    for _ in range(1_000):
        store.charge(((counting, "ann", 10**30),))
        assert store.hit(((counting, "ann", 1),)).reason is Reason.LIMITED
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 10_000


# -- bans, and that no keys of one hash fill a dict --------------------------------------------------------------------


AT_ONCE = BanPolicy("1/minute", "10m")
FIRST, STEP, MANY = 0x20010DB8 << 96, 2**61 - 1, 300
PROGRAM = type, FunctionType, MethodType, BuiltinMethodType, ModuleType


def reached_from(*roots: object) -> Iterator[Any]:
    """Yield the objects that can be reached from some objects, leaving out the program itself."""
    waiting, seen = list(roots), set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, PROGRAM):
            seen.add(id(one))
            yield one
            waiting += gc.get_referents(one)


def tracked_below(*roots: object) -> Counter[str]:
    """Return the types of the objects that the garbage collector walks below some objects, with how many there are."""
    for _ in range(3):
        gc.collect()  # tuples are left out from then on, those in others first
    return Counter(type(one).__name__ for one in reached_from(*roots) if gc.is_tracked(one))


def active(store: MemoryStore) -> list[str]:
    return [ban.key for page in store.bans.pages() for ban in page]


def test_a_flood_of_bans_pushes_none_out_and_is_bounded(opened: Opened, observer: RecordingObserver) -> None:
    strikes, most = 9_000, 1_000  # half of them fill the caches of parsed keys
    store = opened(max_bans=most, max_keys=most)
    store.bans.ban("user:first", None, "", "eve")
    networks = [format_network(6, FIRST + (number << 64), 64) for number in range(strikes)]
    tracemalloc.start()
    for number, network in enumerate(networks):
        store.bans.strike(AT_ONCE, network, 1, "why")
        if number == strikes // 2:
            half, _ = tracemalloc.get_traced_memory()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held - half < 100 * most + 200_000
    assert held < 3_000 * most + 1_000_000
    assert {"user:first", *networks[: most - 1]} == {*active(store)}
    assert Counter(observer.kinds) == {"banned": most, "bans_full": 1, "strikes_dropped": 1}


def test_no_strike_looks_at_many_bans_however_often_they_come_and_go(wall: FakeClock) -> None:
    """And all of them go in the end."""
    store, policy, longest = MemoryStore(clock=wall), BanPolicy("1/10m", "1s", factor=1, forgive="24h"), 0
    store.bans.ban("203.0.113.0/24", HOUR_US, "", "eve")
    tracemalloc.start()
    for turn in range(8):
        for number in range(500):
            longest = max(longest, calls_of(lambda key=f"user:{number}": store.bans.strike(policy, key, 1, "why")))
        for number in range(1_000):
            store.bans.ban("user:eve", HOUR_US + number, "", "ann")
            store.bans.unban("user:eve", "ann")
        wall.advance("2s")
        if turn == 3:
            half, _ = tracemalloc.get_traced_memory()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert longest < 400, "calls of functions in one strike"
    assert held - half < 200_000, "outdated ends go, too"
    assert store.bans.find(("203.0.113.0/24",))
    wall.advance("400h")
    for _ in range(1_000):
        store.bans.sweep()
    assert (store.bans.count(), store.bans.rows.level_count(), store.bans.rows.networks.bans) == (0, 0, {})


def test_bans_come_and_go_while_threads_ask(store: MemoryStore, observer: RecordingObserver) -> None:
    def work(thread: int) -> None:
        for number in range(300):
            key = f"192.0.2.{number % 16}"
            if thread == 0:
                store.bans.ban(key, None, "", "eve")
                store.bans.unban(key, "eve")
            else:
                store.hit(((LIMITED, key, 1),))
                json.dumps([*store.bans.pages()])

    with hurried(collecting=False):
        at_once(work)
    assert (observer.kinds, active(store)) == (["banned", "unbanned"] * 300, [])


def strike(store: MemoryStore, key: str, policy: BanPolicy = AT_ONCE) -> None:
    store.bans.strike(policy, key, 1, "why")


def fill(store: MemoryStore, key: str, limit: AnyLimit) -> None:
    """Hit with a key, beside others that leave it no room for a window of its own."""
    limited = Bucket("rule", [limit])
    assert store.hit([(limited, name, 1) for name in (key, *"abcde")])


@pytest.mark.parametrize(
    ("kind", "most", "act"),
    [
        ("bans_full", "max_bans", strike),
        ("strikes_dropped", "max_keys", partial(strike, policy=BanPolicy("3/hour", "10m"))),
        ("keys_shared", "max_keys", partial(fill, limit=Limit(1_000, "1ms"))),
        ("keys_shared", "max_keys", partial(fill, limit=Concurrency(1_000))),
    ],
)
def test_that_there_is_no_room_is_reported_once_a_minute(
    opened: Opened, clock: FakeClock, wall: FakeClock, observer: RecordingObserver, kind: str, most: str, act: Any
) -> None:
    store = opened(**{most: 5})
    for number in range(300):
        act(store, f"user:{number}")
        clock.advance("500ms")
        wall.advance("500ms")  # two and a half minutes
    wall.advance(us=-24 * HOUR_US)
    act(store, "user:later")
    first, *others = [event for event in observer.events if event.kind == kind]
    assert len(others) == (2 if kind == "keys_shared" else 3), "also where the clock is set back"
    assert first.details[most] == 5
    assert first.message.startswith(f"all 5 {most[4:]} are in use")
    assert first.message.endswith(f"raise {most}")


def test_the_garbage_collector_walks_no_bans_or_strikes(opened: Opened) -> None:
    store = opened(max_bans=10_000)
    before = tracked_below(store.bans.rows, store._tables)
    policy = BanPolicy("2/minute", "10m")
    for number in range(3_000):
        store.bans.strike(policy, f"192.0.{number >> 8}.{number & 255}", 1 + number % 2, "why")
        store.bans.ban(f"user:{number}", None, "why", "eve")
    for number in range(0, 3_000, 2):
        store.bans.unban(f"user:{number}", "eve")
    assert len(active(store)) == 3_000
    # From CPython 3.14 on it walks every dict, also one of bytes alone: there are a few for each shard.
    assert (tracked_below(store.bans.rows, store._tables) - before).total() < 300


def crafted(shift: int) -> list[str]:
    """Return prefixes of `128 - shift` bits, of which those with one hash are as many as can be."""
    return [format_network(6, FIRST + (number * STEP << shift), 128 - shift) for number in range(MANY)]


def most_of_one_hash(root: object) -> int:
    large = [each for each in reached_from(root) if isinstance(each, dict) and len(each) >= MANY]
    assert large, "nothing was filled, so this shows nothing"
    return max(max(Counter(map(hash, held)).values()) for held in large)


def test_no_dictionary_of_a_memory_store_holds_many_keys_of_one_hash(store: MemoryStore) -> None:
    parsed = [parse_address(text.removesuffix("/128")) for text in crafted(0)]
    assert len({hash(address[1]) for address in parsed if address is not None}) == 1, "as integers they have one hash"
    for shift in (0, 16, 40):
        for text in crafted(shift):
            address = parse_address(text.split("/")[0])
            assert address is not None
            store.hit(((LIMITED, text, 1),), (address,))
            store.bans.strike(AT_ONCE, text, 1, "")
            store.bans.ban(text, None, "", "test")
    assert most_of_one_hash(store) <= 3


async def test_no_memo_of_a_middleware_holds_many_keys_of_one_hash() -> None:
    client = client_ip(trusted=["192.0.2.0/24"], ipv6_prefix=128)
    middleware = RateLimitMiddleware(hello, limits="5/minute", client=client, limiter=Limiter(MemoryStore()))
    for text in crafted(0):
        address = text.removesuffix("/128")
        for peer in ("192.0.2.7", address):
            assert (await call(middleware, client=(peer, 1), headers={"x-forwarded-for": address})).status == 200
    assert most_of_one_hash(middleware) <= 3
