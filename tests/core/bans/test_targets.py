"""Whom a policy may ban by itself."""

from __future__ import annotations

import pytest

from slidegate.core import Networks
from slidegate.core.bans.policy import BanPolicy, ban_target

PLAIN = BanPolicy()
PREFIXES = BanPolicy(prefix_after="4/1h")


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        ("user:42", ""),
        ("header:X-API-Key#1f3a", ""),
        ("ann", ""),
        ("192.0.2.7", "192.0.2.0/24"),
        ("192.0.2.128/25", "192.0.2.0/24"),
        ("192.0.2.0/24", ""),
        ("2001:db8:1:2ff::/64", "2001:db8:1:200::/56"),
        ("2001:db8:1:2ff::a/128", "2001:db8:1:200::/56"),
        ("2001:db8:1::/48", ""),
    ],
)
def test_an_address_has_the_prefix_above_it(key: str, prefix: str) -> None:
    assert ban_target(PREFIXES, key) == (key, prefix)
    assert ban_target(PLAIN, key) == (key, "")


def test_a_prefix_is_as_long_as_the_policy_says() -> None:
    policy = BanPolicy(prefix_after="4/1h", ipv4_prefix=28, ipv6_prefix=48)
    assert ban_target(policy, "192.0.2.77") == ("192.0.2.77", "192.0.2.64/28")
    assert ban_target(policy, "2001:db8:1:2::/64") == ("2001:db8:1:2::/64", "2001:db8:1::/48")


PRIVATE_4 = (
    "127.0.0.1 10.0.0.7 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 169.254.0.1 10.0.0.0/24 172.31.255.0/24"
)
PRIVATE_6 = "::1/128 ::/64 fc00::/64 fd12:3456::/64 fe80::/64"


@pytest.mark.parametrize("key", [*PRIVATE_4.split(), *PRIVATE_6.split()])
def test_loopback_private_and_link_local_addresses_are_banned_only_where_the_policy_says_so(key: str) -> None:
    assert ban_target(PLAIN, key) is None
    assert ban_target(BanPolicy(ban_private=True), key) == (key, "")


@pytest.mark.parametrize("key", ["192.0.2.0/23", "192.0.0.0/16", "128.0.0.0/1", "2001:db8::/47", "2001:db8::/32"])
def test_a_network_wider_than_a_customer_has_is_nobody(key: str) -> None:
    for policy in (PLAIN, PREFIXES, BanPolicy(ban_private=True), BanPolicy(ipv4_prefix=31, ipv6_prefix=63)):
        assert ban_target(policy, key) is None


NEIGHBOURS = "172.32.0.1 100.128.0.1 11.0.0.0 2001:db8::/64"
AS_WIDE_AS_CUSTOMERS = "192.0.2.0/24 192.0.2.0/25 2001:db8::/48 2001:db8::/56"


@pytest.mark.parametrize("key", [*NEIGHBOURS.split(), *AS_WIDE_AS_CUSTOMERS.split()])
def test_the_neighbours_of_private_addresses_and_networks_of_one_customer_can_be_banned(key: str) -> None:
    for policy in (PLAIN, BanPolicy(ipv4_prefix=31, ipv6_prefix=63)):
        assert ban_target(policy, key) == (key, "")


def test_a_policy_that_bans_wider_prefixes_bans_wider_networks() -> None:
    wide = BanPolicy(ipv4_prefix=16, ipv6_prefix=32)
    for key in ("192.0.0.0/16", "2001:db8::/32"):
        assert ban_target(wide, key) == (key, "")
    for key in ("192.0.0.0/15", "2001:db0::/28"):
        assert ban_target(wide, key) is None


def test_nothing_that_meets_a_protected_network_is_banned() -> None:
    protected = Networks(["192.0.2.16/28", "2001:db8:1:2::/64"])
    assert ban_target(PREFIXES, "user:42", Networks(["0.0.0.0/0", "::/0"])) == ("user:42", "")
    for key in ("192.0.2.17", "192.0.2.0/27", "2001:db8:1:2::/64", "2001:db8:1:2::a/128", "2001:db8:1::/48"):
        assert ban_target(PREFIXES, key, protected) is None
        assert ban_target(PREFIXES, key) is not None


def test_an_address_beside_a_protected_one_is_banned_without_the_prefix_of_both() -> None:
    protected = Networks(["192.0.2.16/28", "2001:db8:1:2::/64"])
    assert ban_target(PREFIXES, "192.0.2.7", protected) == ("192.0.2.7", "")
    assert ban_target(PREFIXES, "2001:db8:1:3::/64", protected) == ("2001:db8:1:3::/64", "")
    assert ban_target(PREFIXES, "198.51.100.7", protected) == ("198.51.100.7", "198.51.100.0/24")


def test_a_prefix_that_holds_private_addresses_is_not_banned() -> None:
    policy = BanPolicy(prefix_after="4/1h", ipv6_prefix=24)
    wide = BanPolicy(prefix_after="4/1h", ipv4_prefix=16)
    assert ban_target(wide, "172.32.0.1") == ("172.32.0.1", "172.32.0.0/16")
    assert ban_target(policy, "::2:0:0:0:1/128") == ("::2:0:0:0:1/128", "")  # ::/24 holds the loopback address
