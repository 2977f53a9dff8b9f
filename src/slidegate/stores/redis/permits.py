"""The permits that requests of one event loop have in Redis, and their renewal.

Each event loop is a worker of its own, because it sends one call with permits after another: when a call is packed, the
answers to all before it are known. So each call contains the true count of the loop, see `stores.leases`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from ..leases import HeldPermits

if TYPE_CHECKING:
    from .batch import Batcher
    from .store import RedisStore

AT_ONCE: Final = 64
"""How many rows are renewed at once, so that requests of clients are sent in between."""


class LoopPermits(HeldPermits):
    """The permits of one event loop.

    Args:
        store: The store.
        batcher: Sends the requests of the event loop.

    Attributes:
        batcher: The argument.
    """

    def __init__(self, store: RedisStore, batcher: Batcher) -> None:
        super().__init__(store.lease_us, self.renew)
        self.batcher = batcher
        self._packing = store.packing

    async def renew(self) -> None:
        """Renew all permits.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        rows, failed = self.rows(), list[BaseException]()
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            sent = [self.batcher.request(partial(self._packing.renewal, row, self), _nothing, True) for row in some]
            answers = await asyncio.gather(*sent, return_exceptions=True)
            failed += [answer for answer in answers if isinstance(answer, BaseException)]
        if failed:
            raise failed[0]


def _nothing(answer: bytes, now_us: int) -> None:
    """Read the answer to a renewal that has not failed."""
