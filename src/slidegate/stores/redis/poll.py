"""The poll: once a second a worker asks Redis for the bans of networks, and for the state of the data.

The bans of networks are a short list, of which every worker keeps a copy. It reads the list again when Redis reports
another version of it.

The data has an identity, called its life. It changes when Redis has lost its data; a worker then reports how many bans
it knew of. Once a minute a poll asks whether Redis evicts keys, and so limits and bans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.bans.networks import MAX_NETWORKS, BannedNetworks
from ...core.errors import StoreUnavailable
from ...core.events import Event
from .changes import Changes
from .protocol import Packed, Packing, StoreTime, pack_command, read_bans, real_monotonic_us

POLL_NS: Final = 1_000_000_000
"""How old the last poll may be when a request is decided."""
CHECK_EVERY_US: Final = 60_000_000
"""How often to check whether Redis evicts keys: an operator may change that while it runs."""


class Polled:
    """The last poll, and the request that polls; see `Request`. All event loops of a store share it.

    Args:
        packing: Packs the request.
        time: The clock of the store.
        changes: Is told where the bans of networks change, or Redis has lost its data.
        tell: Emits an event.
        begins: Whether data begins where there is none; if not, this is a tool, and that is an error.

    Attributes:
        names: The keys of what concerns all bans: the hash with life and version, the index, and the networks.
        networks: The bans of networks.
        life: The identity of the data; empty before the first poll.
        ban_count: The number of bans, some of which may have ended since.
        due_ns: From when on calls poll (monotonic).
    """

    has_permits = False

    def __init__(
        self, packing: Packing, time: StoreTime, changes: Changes, tell: Callable[[Event], None], *, begins: bool
    ) -> None:
        self._packing = packing
        self._time = time
        self._changes = changes
        self._tell = tell
        self._begins = begins
        self.names = packing.meta, packing.meta + b":index", packing.meta + b":networks"
        self.networks = BannedNetworks()
        self.life = b""
        self.ban_count = 0
        self.due_ns = 0
        self._version = b"?"  # of the networks; none has this one, so that they are read first
        self._next_check_us = 0
        """When the next poll asks whether Redis evicts keys (monotonic)."""
        self._policy = b""
        """Which keys Redis evicts when it is full."""

    def longest(self, subjects: Iterable[BanSubject], of_keys: Iterable[Ban] = ()) -> Ban | None:
        """Return the ban that ends last among those of keys, and those of networks that refuse some of `subjects`."""
        bans = [*of_keys]
        if self.networks.bans:
            for subject in subjects:
                bans += self.networks.of(subject)
        if not bans:
            return None
        return longest(bans, self._time.now_us())

    def is_awaited(self) -> bool:
        """Return True: without this no request may be decided."""
        return True

    def pack(self) -> Packed:
        """Pack the request."""
        life_if_none = b""
        if self._begins:
            life_if_none = os.urandom(8).hex().encode()
        now_us = real_monotonic_us()
        checks_eviction = not self.life or now_us >= self._next_check_us
        if checks_eviction:
            self._next_check_us = now_us + CHECK_EVERY_US
        return pack_command(
            self.names, b"poll", life_if_none, int(checks_eviction), self._version, self._packing.naming
        )

    def deliver(self, answer: Sequence[Any], now_us: int, sent_ns: int) -> None:
        """Read the answer.

        Raises:
            StoreUnavailable: This is a tool, and Redis has no slidegate data, or workers that make other names.
        """
        count, life, policy, version, rows, naming = answer
        until_ns = sent_ns + POLL_NS
        if until_ns < self._changes.polled_until_ns:  # another event loop has read the answer to a later one
            return
        before = self.life
        if not self._begins:
            self._check_data(life, naming)
        if policy:
            self._warn_of_eviction(policy)
        if version != self._version:
            self.networks = BannedNetworks(chain.from_iterable(map(_bans_in, rows[1::2])))
            self._version = version
            self._changes.note()
        if life != before:
            self._changes.note_loss()
        lost, self.life, self.ban_count = self.ban_count, life, count
        if before not in (b"", life):
            message = f"Redis lost its data: counts restart from zero; {lost} known bans were lost"
            self._tell(Event("store_reset", message, {"bans": lost}))
        self.due_ns = self._changes.polled_until_ns = until_ns

    def fail(self, error: Exception) -> None:
        """Do nothing: the next call polls again."""

    def _check_data(self, life: bytes, naming: bytes) -> None:
        """Check that there is data of workers, whose names of keys this store would make, too."""
        self.life, self.due_ns = b"", 0  # so that after an error the next call polls again
        name = self.names[0].decode()
        if not life:
            raise StoreUnavailable(
                f"redis: no slidegate data under {name}; the first worker creates it; check the database and the prefix"
            )
        if naming not in (b"", self._packing.naming):
            raise StoreUnavailable(
                f"redis: the workers of {name} have another secret, or readable=True, and so other names for keys; set "
                "SLIDEGATE_SECRET, or the options of the address, to those of the application"
            )

    def _warn_of_eviction(self, policy: bytes) -> None:
        """Emit an event if Redis evicts keys when it is full; once, until its policy is another one."""
        before, self._policy = self._policy, policy
        if policy in (before, b"noeviction"):
            return
        name = policy.decode()
        message = (
            f"Redis evicts keys when it is full (maxmemory-policy {name}), so limits and bans are lost; set "
            "maxmemory-policy noeviction"
        )
        self._tell(Event("store_evicts", message, {"policy": name}))


@lru_cache(2 * MAX_NETWORKS)
def _bans_in(row: bytes) -> list[Ban]:
    """Return the ban of a row, none if it cannot be read; of rows that are read again, only new ones are unpacked."""
    return read_bans([row])
