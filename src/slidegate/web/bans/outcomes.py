"""Strikes for what the application makes of a request: the status of its answer, or an exception."""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from ..record import Record, Side
from ..scope_keys import STATUS


def listening(scope: Scope, send: Send, record: Record, side: Side) -> Send:
    """Wrap `send` so that the status of the application's answer strikes under the policies of a gate."""
    begun = False

    async def send_heard(message: Message) -> None:
        nonlocal begun
        if message["type"] in STATUS and not begun:
            begun = True
            await hear(message.get("status", STATUS[message["type"]]), scope, record, side)
        await send(message)

    return send_heard


async def hear(status: int, scope: Scope, record: Record, side: Side) -> None:
    """Strike for a status, unless a gate made the answer, or spares the request."""
    if record.own_answer() or record.spared_by(side):
        return
    place = next(place for place, step in enumerate(record.steps) if step.side is side)
    await side.abuse.answered(status, scope, [step.side.abuse for step in record.steps[:place]])
