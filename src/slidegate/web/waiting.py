"""Waiting for one's turn, with an eye on the client: who leaves while waiting gives the place back.

Only the receive channel says that a client has gone, so it is read while waiting, and what comes is handed on
afterwards. It is read no further than the first piece of a longer body: the rest stays where it is, and a client that
leaves then is noticed by the application, as without the gate.
"""

from __future__ import annotations

import anyio
from starlette.types import Message, Receive


async def wait_turn(receive: Receive, wait_us: int) -> Receive | None:
    """Wait, and return the channel to go on with; None if the client left meanwhile."""
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
        await anyio.sleep(wait_us / 1_000_000)
        tasks.cancel_scope.cancel()
    if early and early[-1]["type"].endswith(".disconnect"):
        return None

    async def replay() -> Message:
        return early.pop(0) if early else await receive()

    return replay
