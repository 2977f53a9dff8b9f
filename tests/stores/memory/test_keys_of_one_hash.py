"""Clients choose their addresses. None of the dictionaries that they fill can be filled with keys of one hash.

CPython takes integers modulo 2**61 - 1 for their hash, and an IPv6 network of 48 bits holds 2**19 addresses that are
equal by it. A dictionary of such keys is as slow as a list.
"""

from collections import Counter

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware
from slidegate.core import Bucket, parse_address, parse_limits
from slidegate.core.addresses import format_network
from slidegate.testing import FakeClock
from slidegate.web.client_ip import client_ip

from ...asgi import call, hello
from .test_bans import reached_from

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
