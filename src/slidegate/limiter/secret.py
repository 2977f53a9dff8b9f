"""The secret of a store that may be away.

Digests of API keys and the like are made with a secret that belongs to the store, so that everybody who shares the
store makes the same key of the same value. A store elsewhere has to be asked for its secret, and an application starts
also while that store does not answer. So nothing is asked before the first question about a key, and that question
waits for the secret no longer than the deadline. Until the secret has come

* digests are made with a secret of this process's own: they are *provisional*;
* the store is asked for nothing else, because it would not know the keys. `on_error` decides.

Then digests are made with the secret. The windows, strikes and bans that were counted here meanwhile are asked as well,
under their provisional spelling, as long as they count: see `local_counts`.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ..core.protocols import Store
from . import breakers
from .deadlines import within
from .failsafe import Failsafe
from .key_spelling import Keys


class Secret:
    """The secret that a limiter waits for.

    Args:
        store: The store that the secret belongs to.
        keys: Make digests with the secret.
        safe: Asks the store for everything else when the secret has come.
    """

    def __init__(self, store: Store, keys: Keys, safe: Failsafe) -> None:
        self._store = store
        self._keys = keys
        self._safe = safe
        self._again_us = 0
        safe.acquainted = False

    async def come(self) -> bool:
        """Wait for the secret, no longer than the deadline; return whether it has come.

        If it did not come, the store is left alone for a while; then one question waits for the secret, and no other.
        """
        secret = self._store.secret
        if isinstance(secret, bytes):
            self._take(secret)
        elif self._keys.provisional:
            return await self._ask(secret)
        return True

    async def fetch(self) -> None:
        """Wait for the secret as long as a command may take.

        Raises:
            StoreError: The secret did not come.
        """
        self._take(await within(self._store.secret))

    async def _ask(self, secret: Awaitable[bytes]) -> bool:
        now_us = self._safe.now_us()
        if now_us < self._again_us:
            return False
        before_us = self._again_us
        if before_us:
            self._again_us = now_us + max(breakers.OPEN_US, self._safe.deadline_us)
        try:
            answer = await self._safe.first(secret)
        except BaseException:
            self._again_us = before_us  # the caller has left, and nothing was learnt
            raise
        if not answer:
            self._again_us = self._safe.now_us() + breakers.OPEN_US
            return False
        self._take(answer)
        return True

    def _take(self, secret: bytes) -> None:
        if self._keys.provisional:
            self._keys.use(secret)
            self._safe.acquaint(self._keys)
