"""Bans in the memory store: how much it keeps, threads, and what it tells; and that no keys of one hash fill a dict."""

import gc
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import pytest

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware, client_ip, parse_limits
from slidegate.core import Bucket, Reason, parse_address
from slidegate.core.addresses import format_network
from slidegate.core.bans.rows import to_rows
from slidegate.testing import FakeClock, RecordingObserver

from ...asgi import call, hello
from ...contract.programs import HOUR_US, SECOND_US
from ...hurry import at_once, hurried

NEW_YEAR_US = 4_102_444_800 * SECOND_US

AT_ONCE = BanPolicy("1/minute", "10m")
BUCKET = Bucket("rule", parse_limits("5/minute"))
PROGRAM = type, FunctionType, MethodType, BuiltinMethodType, ModuleType
Opened: TypeAlias = Callable[..., MemoryStore]


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


@pytest.fixture
def wall() -> FakeClock:
    return FakeClock(NEW_YEAR_US)


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def opened(wall: FakeClock, observer: RecordingObserver) -> Opened:
    """Make stores whose bans go by `wall`."""

    def opened(**options: int) -> MemoryStore:
        store = MemoryStore(clock=FakeClock(), wall_clock=wall, **options)
        store.observe(observer)
        return store

    return opened


def active(store: MemoryStore) -> list[str]:
    return [ban.key for ban in store.bans.active()]


def test_a_flood_of_bans_pushes_none_out_and_is_bounded(opened: Opened, observer: RecordingObserver) -> None:
    strikes, most = 9_000, 1_000  # half of them fill the caches of parsed keys
    store = opened(max_bans=most, max_keys=most)
    store.bans.ban("user:first", None, "", "eve")
    first = int.from_bytes(bytes.fromhex("20010db8"), "big") << 96
    networks = [format_network(6, first + (number << 64), 64) for number in range(strikes)]
    tracemalloc.start()
    try:
        for number, network in enumerate(networks):
            store.bans.strike(AT_ONCE, network, 1, "why")
            if number == strikes // 2:
                half, _ = tracemalloc.get_traced_memory()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held - half < 100 * most + 200_000
    assert held < 3_000 * most + 1_000_000
    store.bans.ban("user:last", None, "", "eve")
    store.bans.ban("192.0.2.7", HOUR_US, "", "eve")
    assert len(active(store)) == most + 2
    assert {"user:first", "user:last", "192.0.2.7", networks[0]} <= {*active(store)}
    assert not store.hit(((BUCKET, networks[0], 1),))
    unbanned = [store.hit(((BUCKET, networks[-1], 1),)).reason for _ in range(6)]
    assert unbanned == [Reason.OK] * 5 + [Reason.LIMITED]
    kinds = Counter(observer.kinds)
    assert kinds == {"banned": most + 2, "bans_full": 1, "strikes_dropped": 1, "keys_shared": 1}


def test_bans_come_and_go_while_threads_ask(opened: Opened, observer: RecordingObserver) -> None:
    store = opened()

    def work(thread: int) -> None:
        for number in range(300):
            key = f"192.0.2.{number % 16}"
            if thread == 0:
                store.bans.ban(key, None, "", "eve")
                store.bans.unban(key, "eve")
            else:
                store.hit(((BUCKET, key, 1),))
                json.dumps([*to_rows(store.bans.active())])

    with hurried(collecting=False):
        at_once(work)
    assert (observer.kinds, active(store)) == (["banned", "unbanned"] * 300, [])


@pytest.mark.parametrize(
    ("kind", "most", "policy"),
    [("bans_full", "max_bans", AT_ONCE), ("strikes_dropped", "max_keys", BanPolicy("3/hour", "10m"))],
)
def test_that_there_is_no_room_is_told_once_a_minute(
    opened: Opened, wall: FakeClock, observer: RecordingObserver, kind: str, most: str, policy: BanPolicy
) -> None:
    store = opened(**{most: 5})
    for number in range(300):
        store.bans.strike(policy, f"user:{number}", 1, "why")
        wall.advance("500ms")  # two and a half minutes
    wall.advance(us=-24 * HOUR_US)
    store.bans.strike(policy, "user:later", 1, "why")
    first, *others = [event for event in observer.events if event.kind == kind]
    assert len(others) == 3, "also where the clock is set back"
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


FIRST = 0x20010DB8 << 96
STEP = 2**61 - 1
MANY = 300


def crafted(shift: int) -> list[str]:
    """Return prefixes of `128 - shift` bits, of which those with one hash are as many as can be."""
    return [format_network(6, FIRST + (number * STEP << shift), 128 - shift) for number in range(MANY)]


def most_of_one_hash(root: object) -> int:
    large = [each for each in reached_from(root) if isinstance(each, dict) and len(each) >= MANY]
    assert large, "nothing was filled, so this shows nothing"
    return max(max(Counter(map(hash, held)).values()) for held in large)


def test_the_addresses_have_one_hash_as_integers() -> None:
    parsed = [parse_address(text.removesuffix("/128")) for text in crafted(0)]
    assert len({hash(address[1]) for address in parsed if address is not None}) == 1


def test_no_dictionary_of_a_memory_store_holds_many_keys_of_one_hash() -> None:
    store = MemoryStore(clock=FakeClock())
    bucket = Bucket("rule", parse_limits("5/minute"))
    policy = BanPolicy("1/minute", "10m")
    for shift in (0, 16, 40):
        for text in crafted(shift):
            address = parse_address(text.split("/")[0])
            assert address is not None
            store.hit(((bucket, text, 1),), (address,))
            store.bans.strike(policy, text, 1, "")
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
