"""Waiting at an endpoint: a request waits for its turn if its limit says so and it would be admitted soon."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from starlette.requests import HTTPConnection
from starlette.types import Message

from ...core.bans.in_force import Guarded
from ...core.decision import Decision
from ...limiter import Limiter
from ..request import RequestLimits, unless_left
from ..scope_keys import RECORD
from .refusal import ClientLeft

_RECEIVE = "_receive"
"""The attribute by which Starlette's requests and websockets read their messages."""


async def turn_at_endpoint(
    request: HTTPConnection, decision: Decision, limiter: Limiter, guarded: Sequence[Guarded]
) -> Decision:
    """Wait in line, and return the last decision.

    Messages that come meanwhile are there for whoever reads the request afterwards.

    Raises:
        ClientLeft: The client left meanwhile.
    """
    record: RequestLimits = request.scope[RECORD]
    channel = record.read_ahead(vars(request).get(_RECEIVE, _nothing))
    record.add(decision)
    record.waited = True
    last = await unless_left(channel, limiter, lambda: limiter.engine.lines.wait(decision, guarded))
    if last is None:
        raise ClientLeft(request.scope)
    record.steps.pop()
    record.waited = last.allowed
    if _RECEIVE in vars(request):
        vars(request)[_RECEIVE] = channel
    return last


async def _nothing() -> Message:
    """Stand for the messages of a request that was made without them."""
    await anyio.sleep_forever()
    raise AssertionError  # sleep_forever never returns
