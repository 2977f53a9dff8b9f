"""Waiting at an endpoint: a request waits for its turn if its limit says so and it would be admitted soon."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from starlette.requests import HTTPConnection
from starlette.types import Message

from ...core.bans.in_force import Guarded
from ...core.decision import Check, Decision, Reason
from ...limiter import Limiter
from ...limiter.places.waits import PASSED, REFUSED
from ..finishing import hand_back
from ..record import LEFT, Record
from ..scope_keys import RECORD

_RECEIVE = "_receive"
"""The attribute by which Starlette's requests and websockets read their messages."""


async def turn_at_endpoint(
    request: HTTPConnection, decision: Decision, limiter: Limiter, guarded: Sequence[Guarded]
) -> Decision:
    """Wait where a decision says so, and return the last decision; `LEFT` if the client left meanwhile.

    A place that was waited for in vain is handed back, also when the request is cancelled. Messages that come meanwhile
    are there for whoever reads the request afterwards.
    """
    queues = limiter.internals.queues

    async def ask(checks: Sequence[Check]) -> Decision:
        return await limiter.hit_all(checks, guarded)

    async def wait() -> None:
        nonlocal decision
        if decision.reason is Reason.WAITED:
            await anyio.sleep(decision.wait_us / 1_000_000)
        else:
            decision = await queues.wait(decision, ask)

    record: Record = request.scope[RECORD]
    there, channel = False, record.read_ahead(vars(request).get(_RECEIVE, _nothing))
    try:
        with limiter.internals.waits.one() as waiting:
            there = await channel.while_there(wait)
            if there:
                waiting.outcome = PASSED if decision.allowed else REFUSED
    finally:
        if not there:
            await hand_back([(limiter, decision)])
    if not there:
        return LEFT
    if _RECEIVE in vars(request):
        vars(request)[_RECEIVE] = channel
    return decision


async def _nothing() -> Message:
    """Stand for the messages of a request that was made without them."""
    await anyio.sleep_forever()
    raise AssertionError  # sleep_forever never returns
