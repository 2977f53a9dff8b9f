"""The decision about a request, on the span that records it.

It stands outside of `RateLimitMiddleware`. When the first message of the answer goes out, the record of the request
holds the decisions of each middleware and of each limit at an endpoint, and the span gets them. A span that does not
record costs a request one question, and nothing that a client can choose gets into an attribute: no key, address or
path.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span, get_current_span
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.decision import Decision, Reason
from ..web.request import ENDED, RECORD, STATUS, RequestLimits
from .definitions import PREFIX

EVENT: Final = "slidegate.decision"
"""The name of the event that each decision about a request makes on its span."""
_OUTCOMES: Final = {
    Reason.BANNED: "banned",
    Reason.BLOCKED: "blocked",
    Reason.UNAVAILABLE: "unavailable",
}


class DecisionSpans:
    """A middleware that notes the decision about each request on its current span, if that records.

    Add it after `RateLimitMiddleware`, so that it stands further out. The span gets the attributes
    ``slidegate.outcome``, ``slidegate.reason``, ``slidegate.rule``, ``slidegate.limit``, ``slidegate.remaining`` and,
    if the request is refused, ``slidegate.retry_after`` in seconds; and for each decision on the way an event
    ``slidegate.decision``.

    Args:
        app: The application, with its `RateLimitMiddleware`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note its decision."""
        span = get_current_span()
        if scope["type"] not in ("http", "websocket") or not span.is_recording():
            await self.app(scope, receive, send)
            return
        noted = False

        async def send_noted(message: Message) -> None:
            nonlocal noted
            if not noted and message["type"] in STATUS:
                noted = True
                note(span, scope.get(RECORD) or scope.get(ENDED))
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            if not noted:
                note(span, scope.get(RECORD) or scope.get(ENDED))


def note(span: Span, record: RequestLimits | None) -> None:
    """Note what was decided about a request.

    Args:
        span: A span that records.
        record: The record of the request; None, or an empty one, where no middleware has decided.
    """
    if record is None or not (record.entries or record.refusal is not None):
        return
    decisions = record.decisions
    told = [_attributes(decision) for decision in decisions]
    for attributes in told:
        span.add_event(EVENT, attributes)
    last = record.refusal
    if last is None:
        last = decisions[0] if len(decisions) == 1 else record.decision
    if record.waited and not last.allowed:
        span.set_attribute(f"{PREFIX}.outcome", "left")
        return
    attributes = told[decisions.index(last)] if last in decisions else _attributes(last)
    span.set_attributes({**attributes, f"{PREFIX}.outcome": _outcome(last), f"{PREFIX}.waited": record.waited})


def _outcome(decision: Decision) -> str:
    return "passed" if decision.allowed else _OUTCOMES.get(decision.reason, "refused")


def _attributes(decision: Decision) -> dict[str, str | bool | int | float]:
    """Return a decision as attributes; those that it says nothing about are left out."""
    attributes: dict[str, str | bool | int | float] = {
        f"{PREFIX}.allowed": decision.allowed,
        f"{PREFIX}.reason": str(decision.reason),
    }
    binding = decision.binding
    if binding is not None:
        label = next(bucket.label for bucket, _, _ in decision.checks if bucket.rule == binding.rule)
        attributes |= {
            f"{PREFIX}.rule": label,
            f"{PREFIX}.limit": str(binding.limit),
            f"{PREFIX}.remaining": binding.remaining,
        }
    elif decision.by:
        attributes[f"{PREFIX}.by"] = decision.by
    if not decision.allowed and decision.retry_after_us is not None:
        attributes[f"{PREFIX}.retry_after"] = decision.retry_after_us / 1_000_000
    return attributes
