"""How one key stands under ban policies, on every store and in every spelling."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, header
from slidegate.core.bans.strikes import PolicyStrikes, StoredRecord, Strike, StrikeRecord, policy_strikes
from slidegate.limiter.inspect import MAX_POLICIES, networks_around
from slidegate.testing import FakeClock

from ..asgi import hello

HOUR_US = 3_600_000_000
SCANNERS = BanPolicy("20/10m", "1h", jitter=0, name="scanners", prefix_after="2/1h")


def brief(stands: PolicyStrikes) -> tuple[str, str, int, int | None, int]:
    return stands.policy, stands.key, stands.strikes, stands.needed, stands.level


async def test_an_operator_sees_strikes_level_and_the_standing_of_the_network() -> None:
    clock = FakeClock(HOUR_US)
    limiter = Limiter(MemoryStore(clock=clock))
    await limiter.strike("203.0.113.7", SCANNERS, 20)
    view = await limiter.strikes("203.0.113.7", [SCANNERS])
    assert [brief(stands) for stands in view.policies] == [
        ("scanners", "203.0.113.7", 0, 20, 1),
        ("scanners/prefix", "203.0.113.0/24", 1, 2, 0),
    ]
    assert (view.key, view.now_us, view.left_out) == ("203.0.113.7", HOUR_US, 0)
    clock.advance("1h")
    await limiter.strike("203.0.113.7", SCANNERS, 3)
    own, network = (await limiter.strikes("203.0.113.7", [SCANNERS])).policies[0], "203.0.113.0/24"
    assert brief(own) == ("scanners", "203.0.113.7", 3, 20, 1)
    assert (own.clean_since_us, own.clean_until_us) == (2 * HOUR_US, 26 * HOUR_US)
    assert (await limiter.strikes(network, [SCANNERS])).policies == ()  # the ban of an hour ago has left its window
    assert (await limiter.strikes("203.0.113.8", [SCANNERS])).policies == ()
    assert await limiter.unban("203.0.113.7")
    assert (await limiter.strikes("203.0.113.7", [SCANNERS])).policies == ()


async def test_an_address_of_version_6_is_its_network_and_a_network_does_not_show_what_lies_in_it() -> None:
    limiter = Limiter()
    for key in ("2001:db8:1:2::a", "2001:db8:1:2::a/128", "2001:db8:1:2::b/128", "2001:db8:1:2::/64"):
        await limiter.strike(key, SCANNERS)

    async def keys(key: str) -> list[str]:
        return [stands.key for stands in (await limiter.strikes(key, [SCANNERS])).policies]

    assert await keys("2001:db8:1:2::a") == ["2001:db8:1:2::/64", "2001:db8:1:2::a/128"]
    assert await keys("2001:db8:1:2::b/128") == ["2001:db8:1:2::b/128", "2001:db8:1:2::/64"]
    assert await keys("2001:db8:1:2::/64") == ["2001:db8:1:2::/64"]
    assert await keys("2001:db8:1:3::a") == []


@given(st.ip_addresses(), st.integers(0, 128))
def test_the_networks_around_a_key_are_those_that_hold_it(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, length: int
) -> None:
    widest = {4: 16, 6: 24}[address.version]
    length = max(min(length, address.max_prefixlen), widest)
    network = ipaddress.ip_network((address, length), strict=False)
    mapped = address.version == 6 and int(address) >> 32 == 0xFFFF
    if mapped:
        return
    spelled = str(network).removesuffix("/32") if address.version == 4 else str(network)
    expected = [network.supernet(new_prefix=bits) for bits in range(length, widest - 1, -1)]
    assert [ipaddress.ip_network(known) for known in networks_around(spelled)] == expected


@pytest.mark.parametrize("key", ["user:ann", "header:x-api-key#1f3a", "scan/24", "10.0.0.0/8", "::/0"])
def test_no_network_that_policies_strike_holds_other_keys(key: str) -> None:
    assert networks_around(key) == []


async def test_the_policies_of_gates_say_how_many_strikes_ban_also_those_of_a_file(tmp_path: Path) -> None:
    limiter = Limiter()
    await limiter.strike("user:eve", SCANNERS, 3)
    assert [stands.needed for stands in (await limiter.strikes("user:eve")).policies] == [None]
    middleware = RateLimitMiddleware(hello, limits="5/minute", limiter=limiter, bans=SCANNERS)
    assert [stands.needed for stands in (await limiter.strikes("user:eve")).policies] == [20]
    del middleware
    file = tmp_path / "slidegate.toml"
    policy = '[bans.scanners]\nafter = "30/10m"\nduration = "1h"\n'
    file.write_text(f'[[rules]]\npath = "*"\nlimits = "5/minute"\n{policy}')
    follower = RateLimitMiddleware.from_file(hello, file, limiter=limiter)
    assert [stands.needed for stands in (await limiter.strikes("user:eve")).policies] == [30]
    assert follower


async def test_the_key_of_a_value_is_found_and_threads_ask_the_same() -> None:
    limiter = Limiter()
    key = header("X-API-Key").of("k123")
    await limiter.strike(key, SCANNERS, 4)
    view = await limiter.strikes(key, [SCANNERS])
    assert [stands.strikes for stands in view.policies] == [4]
    answer = await asyncio.to_thread(limiter.sync.strikes, key, [SCANNERS])
    assert answer.policies == view.policies


async def test_of_very_many_policies_the_rest_is_counted() -> None:
    limiter = Limiter()
    for number in range(MAX_POLICIES + 3):
        await limiter.strike("user:eve", BanPolicy(name=f"p{number:03}"))
    view = await limiter.strikes("user:eve")
    assert (len(view.policies), view.left_out) == (MAX_POLICIES, 3)


@pytest.mark.parametrize("key", ["", "999.1.1.1", "1.2.3.4/33"])
async def test_a_key_that_cannot_be_one_is_an_error(key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^ban: "):
        await Limiter().strikes(key)


@pytest.mark.parametrize("wrong", [["20/10m"], "2", 20, BanPolicy("20/10m")])
async def test_what_are_no_policies_is_an_error(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"strikes: expected policies such as \[BanPolicy.*, not .*2"):
        await Limiter().strikes("user:eve", wrong)


def test_a_standing_that_was_loaded_counts_whole_until_its_policy_is_known() -> None:
    record = StrikeRecord(2, 10, 20, [Strike(10, 3)])
    kept = StoredRecord("abuse", "user:eve", record, 0, 0)
    late_us = 10**18
    assert policy_strikes(kept, None, late_us) == PolicyStrikes("abuse", "user:eve", 3, None, 2, 20, None)
    assert policy_strikes(kept, SCANNERS, late_us) is None
    gone_by = kept._replace(window_us=1_000, forgive_us=100)
    assert policy_strikes(gone_by, None, 130) == PolicyStrikes("abuse", "user:eve", 3, None, 1, 20, 220)
    assert policy_strikes(gone_by, None, 1_010) is None
