"""Whom a policy may ban by itself."""

import pytest

from slidegate.core import Networks
from slidegate.core.bans.policy import BanPolicy, may_ban

PLAIN = BanPolicy()


PUBLIC = "user:42 header:X-API-Key#1f3a ann 192.0.2.7 192.0.2.0/24 172.32.0.1 100.128.0.1 11.0.0.0 2001:db8::/48"
PRIVATE = """127.0.0.1 10.0.0.7 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 169.254.0.1 10.0.0.0/24 172.31.255.0/24
::1/128 ::/64 fc00::/64 fd12:3456::/64 fe80::/64"""
WIDE = "192.0.2.0/23 192.0.0.0/16 128.0.0.0/1 2001:db8::/47 2001:db8::/32"
"""Networks wider than a customer has, which are nobody."""


@pytest.mark.parametrize(
    ("keys", "by_default", "with_ban_private"), [(PUBLIC, True, True), (PRIVATE, False, True), (WIDE, False, False)]
)
def test_a_policy_bans_public_keys_and_private_addresses_with_ban_private_alone(
    keys: str, by_default: bool, with_ban_private: bool
) -> None:
    for key in keys.split():
        assert may_ban(PLAIN, key) is by_default, key
        assert may_ban(BanPolicy(ban_private=True), key) is with_ban_private, key


def test_nothing_that_meets_a_protected_network_is_banned() -> None:
    protected = Networks(["192.0.2.16/28", "2001:db8:1:2::/64"])
    assert may_ban(PLAIN, "user:42", Networks(["0.0.0.0/0", "::/0"]))
    for key in ("192.0.2.17", "192.0.2.0/27", "2001:db8:1:2::/64", "2001:db8:1:2::a/128", "2001:db8:1::/48"):
        assert not may_ban(PLAIN, key, protected)
        assert may_ban(PLAIN, key)
    for key in ("192.0.2.7", "2001:db8:1:3::/64", "198.51.100.7"):
        assert may_ban(PLAIN, key, protected)
