"""What was published about other limiters is tried here: none of it evades a limit, and none spends somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, client_ip
from slidegate.testing import FakeClock

from ..asgi import call, hello

ATTACKER, VICTIM, PROXY = "203.0.113.9", "198.51.100.7", "10.0.0.7"
AMOUNT = 3
BEHIND = [
    pytest.param(["10.0.0.0/8"], id="the proxies' networks"),
    pytest.param(1, id="the number of proxies"),
]


def gate(**options: Any) -> RateLimitMiddleware:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    return RateLimitMiddleware(hello, limits=f"{AMOUNT}/hour", limiter=limiter, client=client_ip(**options))


async def through_the_proxy(app: RateLimitMiddleware, written: Sequence[str], peer: str) -> list[int]:
    """Send requests that claim addresses, by way of a proxy that appends that of its peer."""
    headers = [{"X-Forwarded-For": f"{claimed}, {peer}"} for claimed in written]
    return [(await call(app, client=(PROXY, 1), headers=one)).status for one in headers]


@pytest.mark.parametrize("trusted", BEHIND)
async def test_a_new_leftmost_address_with_each_request_evades_no_limit(trusted: Any) -> None:
    """CVE-2026-110723, CVE-2026-118653: the leftmost entry, which the client writes, was taken for the client."""
    claimed = [f"192.0.2.{number}" for number in range(20)]
    assert await through_the_proxy(gate(trusted=trusted), claimed, ATTACKER) == [200] * AMOUNT + [429] * 17


@pytest.mark.parametrize("trusted", BEHIND)
async def test_the_leftmost_address_of_somebody_else_spends_nothing_of_theirs(trusted: Any) -> None:
    """The other half of the same two: whoever is named was counted, and shut out."""
    app = gate(trusted=trusted)
    assert await through_the_proxy(app, [VICTIM] * 5, ATTACKER) == [200] * AMOUNT + [429] * 2
    assert await through_the_proxy(app, [VICTIM] * 4, VICTIM) == [200] * AMOUNT + [429]


@pytest.mark.parametrize("spelling", ["::ffff:192.0.2.{0}", "::ffff:c000:2{0:02x}", "0:0:0:0:0:FFFF:192.0.2.{0}"])
@pytest.mark.parametrize("ipv6_prefix", [56, 64, 128])
async def test_each_ipv4_client_of_a_socket_for_both_versions_has_a_limit_of_its_own(
    spelling: str, ipv6_prefix: int
) -> None:
    """CVE-2026-30827: the prefix of IPv6 was applied to IPv4 inside of IPv6, so that all of IPv4 was one client."""
    app = gate(ipv6_prefix=ipv6_prefix)
    first, second = spelling.format(1), spelling.format(2)
    assert [(await call(app, client=(first, 1))).status for _ in range(5)] == [200] * AMOUNT + [429] * 2
    assert [(await call(app, client=(second, 1))).status for _ in range(4)] == [200] * AMOUNT + [429]
    assert (await call(app, client=("192.0.2.1", 1))).status == 429, "the same client, by its shorter spelling"


async def test_an_ipv6_address_that_ends_like_ipv4_is_one_client_with_its_network() -> None:
    """The mistake beside it: what is written with dots is not IPv4, and its owner chooses the last 32 bits."""
    app = gate(ipv6_prefix=64)
    written = [f"2001:db8:1:2::192.0.2.{number}" for number in range(6)]
    assert [(await call(app, client=(one, 1))).status for one in written] == [200] * AMOUNT + [429] * 3
