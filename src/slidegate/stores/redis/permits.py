"""The permits that requests of one event loop have in Redis, and their renewal.

Each event loop is a worker of its own, because it sends one call with permits after another: when a call is packed, the
answers to all before it are known. So each call contains the true count of the loop, see `stores.leases`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ...core.decision import Decision
from ..leases import HeldPermits
from .script import Packing

AT_ONCE: Final = 64
"""How many rows are renewed at once, so that requests of clients are sent in between."""


class LoopPermits(HeldPermits):
    """The permits of one event loop.

    Args:
        lease_us: How long a permit stays taken without a renewal, in microseconds.
        loop: The event loop.
        packing: Packs requests.
        send: Sends a request; its arguments are those of `Command` after the future.

    Attributes:
        loop: The argument.
    """

    def __init__(
        self, lease_us: int, loop: asyncio.AbstractEventLoop, packing: Packing, send: Callable[..., asyncio.Future[Any]]
    ) -> None:
        super().__init__(lease_us, self.renew)
        self.loop = loop
        self._packing = packing
        self._send = send

    def hold(self, decision: Decision) -> None:
        """Count the permits of a decision."""
        for charge in decision.reservations:
            bucket, key, _ = charge.check
            if bucket.is_permit:
                charge.holder = self
                self.add(self._packing.permits_row(bucket, key), charge)

    async def renew(self) -> None:
        """Renew all permits.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        rows, failed = self.rows(), list[BaseException]()
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            sent = [self._send(partial(self._packing.renewal, row, self), _nothing, True) for row in some]
            answers = await asyncio.gather(*sent, return_exceptions=True)
            failed += [answer for answer in answers if isinstance(answer, BaseException)]
        if failed:
            raise failed[0]


def _nothing(answer: bytes, now_us: int) -> None:
    """Read the answer to a renewal that has not failed."""
