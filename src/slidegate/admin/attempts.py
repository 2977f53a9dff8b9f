"""The limit on wrong tokens.

A client may show five wrong tokens in a minute, and all clients together a hundred. The counts lie in the limiter's
store, so they hold over all workers. A unit is charged *before* a token is compared and handed back if it is right: any
number of guesses at the same time are no way past the bound, and a guess beyond it learns nothing.

A script that sends its token with each request would hold such a unit each time. So a worker remembers that a token was
right from an address, until a wrong token beyond the bound of this address makes it forget. A flood of wrong tokens
from other addresses therefore locks out nobody who has shown a right one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from threading import get_ident
from typing import Final, TypeVar

import anyio
from starlette.types import Scope

from ..core.decision import Bucket, Decision, Reason
from ..core.limits import parse_limits
from ..core.logs import logger
from ..core.memo import remember
from ..limiter import Limiter
from ..stores.memory.store import MemoryStore
from ..web.client_ip import ClientAddress
from .tokens import MOST_TOKENS

_T = TypeVar("_T")

PER_CLIENT: Final = "5/minute"
ALL_CLIENTS: Final = "100/minute"
EVERYONE: Final = "everyone"
_OF_A_CLIENT: Final = Bucket("slidegate-wrong-tokens", parse_limits(PER_CLIENT))
_OF_ALL: Final = Bucket("slidegate-all-wrong-tokens", parse_limits(ALL_CLIENTS))
_MOST_PROVEN: Final = 1_024
_LOCAL_KEYS: Final = 10_000


class Attempts:
    """Lets clients show tokens, so many wrong ones in a minute.

    Args:
        limiter: Its store holds the counts.
        client: Finds the address of a client.
    """

    def __init__(self, limiter: Limiter, client: ClientAddress) -> None:
        self._limiter = limiter
        self._client = client
        self._proven: dict[str, set[bytes]] = {}
        self._underway: dict[tuple[int, str, bytes], anyio.Event] = {}
        self._here: Limiter | None = None

    async def show(
        self, scope: Scope, text: str, find: Callable[[], Awaitable[_T | None]], *, anew: bool = False
    ) -> _T | Decision | None:
        """Find the owner of a token that a client shows.

        Args:
            scope: The ASGI scope of the client's request.
            text: The token.
            find: Returns its owner, None for a wrong token.
            anew: Whether it does not count that the same token was right from there before.

        Returns:
            The owner; None for a wrong token; a refusal if too many were wrong, and then the token was not looked at.
        """
        key, _ = self._client.locate(scope)
        seen = blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        if anew:
            return await self._compare(key, seen, find)
        # Of ten connections that a script opens at once the first one shows the token, and nine find it proven.
        asked = get_ident(), key, seen
        while (before := self._underway.get(asked)) is not None:
            await before.wait()
        if seen in self._proven.get(key, ()):
            return await self._find_again(key, seen, find)
        done = self._underway[asked] = anyio.Event()
        try:
            return await self._compare(key, seen, find)
        finally:
            del self._underway[asked]
            done.set()

    async def _compare(self, key: str, seen: bytes, find: Callable[[], Awaitable[_T | None]]) -> _T | Decision | None:
        """Find the owner of a token of which nothing is known."""
        held = await self._reserve(key)
        if not held.allowed:
            if any(state.rule == _OF_A_CLIENT.rule for state in held.violated):
                self._proven.pop(key, None)
            return held
        try:
            owner = await find()
        except Exception:
            await self._hand_back(held)  # nobody has learnt anything
            raise
        if owner is None:
            logger.warning("a wrong token for an operators' tool was sent from %s", key)
        else:
            proven = remember(self._proven, key, self._proven.get(key, set()), _MOST_PROVEN)
            if len(proven) < MOST_TOKENS:
                proven.add(seen)
            await self._hand_back(held)
        return owner

    async def _find_again(self, key: str, seen: bytes, find: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """Find the owner of a token that was right before."""
        owner = await find()
        if owner is None:
            self._proven.get(key, set()).discard(seen)
        return owner

    async def _reserve(self, key: str) -> Decision:
        """Charge a wrong attempt of a client, before anybody knows whether it is wrong.

        While the store does not answer and `on_error` decides without counting, the counts of this process hold.
        """
        checks = [(_OF_A_CLIENT, key, 1), (_OF_ALL, EVERYONE, 1)]
        decision = await self._limiter.hit_all(checks)
        if decision.reason is Reason.UNAVAILABLE:
            if self._here is None:
                self._here = Limiter(MemoryStore(max_keys=_LOCAL_KEYS))
            decision = await self._here.hit_all(checks)
        return decision

    async def _hand_back(self, held: Decision) -> None:
        """Hand the unit of an attempt back that was right."""
        if not await self._limiter.refund(held) and self._here is not None:
            await self._here.refund(held)
