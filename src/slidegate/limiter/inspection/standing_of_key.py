"""How one key stands under ban policies, for people who look at one client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time_ns
from typing import Final, NamedTuple, Protocol, runtime_checkable

from ...core.addresses import BITS, format_network, parse_network, prefix_length
from ...core.bans.in_force import Guarded
from ...core.bans.policy import BanPolicy
from ...core.bans.standing_view import PolicyStanding, policy_standing
from ...core.errors import ConfigurationError
from ...core.store import BanStore
from ..deadlines import within

WIDEST: Final = {4: 16, 6: 24}
"""The shortest prefix lengths that a policy strikes."""
MOST_POLICIES: Final = 200
"""How many standings are shown of one key."""


@runtime_checkable
class HasPolicies(Protocol):
    """A gate with ban policies."""

    @property
    def policies(self) -> Sequence[BanPolicy]:
        """Its ban policies."""


class KeyStanding(NamedTuple):
    """How a key stands under ban policies. Moments are microseconds of the store's time.

    ``moment_us - now_us + unix_us`` is a moment in Unix time.
    """

    key: str
    """The key as the store holds it."""
    now_us: int
    """The store's time."""
    unix_us: int
    """Unix time at that moment, by the clock of this process."""
    policies: tuple[PolicyStanding, ...]
    """One for each policy under which the key, or a network that holds it, has strikes or a rung; its own first."""
    left_out: int
    """How many further ones there are: 0 unless there are more than 200."""


def policies_of(gates: Iterable[object]) -> list[BanPolicy]:
    """Return the ban policies of some gates."""
    return [policy for gate in gates if isinstance(gate, HasPolicies) for policy in gate.policies]


async def standing_of(
    bans: BanStore, key: str, guards: Sequence[Guarded], policies: Iterable[BanPolicy]
) -> KeyStanding:
    """Return how a key stands.

    Args:
        bans: The bans of the store.
        key: The key in its spelling.
        guards: The address that the key is, if it is one.
        policies: The policies that are known; of two of one name the last one counts.

    Raises:
        StoreError: The store does not answer.
    """
    known: dict[str, BanPolicy] = {}
    for policy in policies:
        known[policy.name] = policy
        if policy.prefix is not None:
            known[policy.prefix.name] = policy.prefix
    keys = [key, *(network for network in networks_around(key, guards) if network != key)]
    now_us, kept = await within(bans.standings(keys))
    places = {name: place for place, name in enumerate(keys)}
    found = [stands for one in kept if (stands := policy_standing(one, known.get(one.policy), now_us)) is not None]
    found.sort(key=lambda stands: (places[stands.key], stands.policy))
    shown = tuple(found[:MOST_POLICIES])
    return KeyStanding(key, now_us, time_ns() // 1_000, shown, len(found) - len(shown))


def networks_around(key: str, guards: Sequence[Guarded] = ()) -> list[str]:
    """Return the keys of the networks that hold an address or network, itself first; none for any other key.

    Args:
        key: The key in its spelling.
        guards: The address that it was spelled of: the key of an IPv6 address is its /64.
    """
    address = next((guard for guard in guards if not isinstance(guard, str)), None)
    if address is not None:
        (version, first), longest = address, BITS[address[0]]
    else:
        try:
            version, first, last = parse_network(key)
        except ConfigurationError:
            return []
        longest = prefix_length(version, first, last)
    return [format_network(version, first, length) for length in range(longest, WIDEST[version] - 1, -1)]
