"""Places that a request holds from its admission to the last byte of its answer, or to the end of its websocket.

Whatever an application does after the last byte, such as background tasks, holds no place. A request that ends without
a last byte, by an exception or a cancellation for example, lets go when the call of the application ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Message, Send

_BODY: Final = frozenset(
    {
        "http.response.body",
        "http.response.pathsend",
        "http.response.zerocopysend",
        "websocket.http.response.body",
    }
)


def until_the_last_byte(send: Send, let_go: Callable[[], Awaitable[None]]) -> Send:
    """Return `send`, made to let go of the places of a request when its answer is complete."""
    trailers = False

    async def send_and_let_go(message: Message) -> None:
        nonlocal trailers
        trailers = trailers or bool(message.get("trailers"))
        await send(message)
        if _is_last(message, trailers):
            await let_go()

    return send_and_let_go


def _is_last(message: Message, trailers: bool) -> bool:
    """Tell whether nothing of the answer comes after a message."""
    kind = message["type"]
    if kind in _BODY:
        return not message.get("more_body", False) and not trailers
    return kind == "websocket.close" or (kind == "http.response.trailers" and not message.get("more_trailers", False))
