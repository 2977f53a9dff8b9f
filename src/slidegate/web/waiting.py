"""Waiting for a booked place, with an eye on the client: a client that leaves while it waits gives the place back.

Only the receive channel says that a client has gone, so it is read while waiting, and its messages are handed on
afterwards. It is read no further than the first piece of a longer body: the rest stays where it is, and the
application notices a client that leaves then, as without the gate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from starlette.types import Message, Receive

MAX_HELD: Final = 100
"""How many requests a gate's tarpit holds at once; further ones are answered at once."""


async def wait_turn(receive: Receive, wait_us: int) -> Receive | None:
    """Wait, and return the channel to go on with; None if the client left meanwhile."""
    return await while_there(receive, lambda: anyio.sleep(wait_us / 1_000_000))


async def while_there(receive: Receive, wait: Callable[[], Awaitable[None]]) -> Receive | None:
    """Do some waiting, and return the channel to go on with; None if the client left meanwhile, which ends it."""
    early: list[Message] = []

    async def watch(scope: anyio.CancelScope) -> None:
        more = True
        while more:
            message = await receive()
            early.append(message)
            more = not message.get("more_body", False)
            if message["type"].endswith(".disconnect"):
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        await wait()
        tasks.cancel_scope.cancel()
    if early and early[-1]["type"].endswith(".disconnect"):
        return None

    async def replay() -> Message:
        return early.pop(0) if early else await receive()

    return replay


class Tarpit:
    """Holds answers to banned clients, so that abuse costs them time: no more than `MAX_HELD` at once."""

    def __init__(self) -> None:
        self._held = 0

    async def hold(self, receive: Receive, delay_us: int) -> bool:
        """Wait, unless too many wait already; False if the client left meanwhile."""
        if self._held >= MAX_HELD:
            return True
        self._held += 1
        try:
            return await wait_turn(receive, delay_us) is not None
        finally:
            self._held -= 1
