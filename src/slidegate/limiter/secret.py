"""The secret of a store that may be away.

Digests of API keys and the like are made with a secret that belongs to the store, so that everybody who shares it makes
the same key of the same value. A store elsewhere has to be asked for it, and an application starts also while that
store does not answer. So nothing is asked before the first question about a key, and that one waits for the secret no
longer than the deadline. Until the secret has come

* digests are made with a secret of this process's own: they are *provisional*;
* the store is not asked for anything else, because it could not be told who is meant. `on_error` decides.

When it has come, digests are made with it, and the windows, strikes and bans that were counted here meanwhile are asked
as well, by the provisional spelling, as long as they count: see `failures`.
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
        store: Whose it is.
        keys: What makes digests with it.
        safe: Asks the store for everything else when the secret has come.
    """

    def __init__(self, store: Store, keys: Keys, safe: Failsafe) -> None:
        self._store = store
        self._keys = keys
        self._safe = safe
        self._again_us = 0
        safe.acquainted = False

    async def come(self) -> bool:
        """Wait for it, no longer than the deadline; tell whether it is there.

        Where it did not come, the store is left alone for a while; then one question waits for it, and no other.
        """
        secret = self._store.secret
        if isinstance(secret, bytes):
            self._take(secret)
        elif self._keys.provisional:
            return await self._ask(secret)
        return True

    async def fetch(self) -> None:
        """Wait for it as long as what people ask for may take.

        Raises:
            StoreError: It did not come.
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
            self._again_us = before_us  # whoever asked has gone, and nothing was learnt
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
