"""What goes back to the client: header fields and refusals.

RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-11, their syntax RFC 9651; the answers are
problem details (RFC 9457) of the types that the draft registers. What does not depend on the moment is made once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from starlette.types import Message, Scope, Send

from ..core.decision import Bucket, Decision, Reason, ceil_s
from ..core.limits import Limit, format_duration
from ..core.window import NEVER

HeaderStyle: TypeAlias = Literal["draft", "legacy", "both"]
Fields: TypeAlias = list[tuple[bytes, bytes]]
_Asked: TypeAlias = tuple[Reason, tuple[tuple[str, Limit], ...]]

_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_MEMO: Final = 4_096


def quote(text: str) -> str:
    """Write printable ASCII as a string of RFC 9651, section 3.3.3."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def policy_item(name: str, limit: Limit) -> str:
    """Write one item of RateLimit-Policy: ``"api";q=100;w=10``. `w` only where the window is whole seconds."""
    seconds, rest = divmod(limit.window_us, 1_000_000)
    return f"{quote(name)};q={limit.amount}" + ("" if rest else f";w={seconds}")


class HeaderWriter:
    """Writes the fields that tell a client where it stands.

    Args:
        style: ``"draft"`` for RateLimit and RateLimit-Policy, ``"legacy"`` for X-RateLimit-Limit, -Remaining and
            -Reset (Unix seconds), or ``"both"``.
    """

    def __init__(self, style: HeaderStyle) -> None:
        self._draft = style in ("draft", "both")
        self._legacy = style in ("legacy", "both")
        self._policies: dict[tuple[Bucket, ...], bytes] = {}
        self._singles: dict[Bucket, tuple[tuple[bytes, bytes], bytes]] = {}

    def fields(self, decisions: Sequence[Decision]) -> Fields:
        """Return the fields for everything that was asked on one request; the tightest limit is the one shown."""
        if len(decisions) == 1 and len(decisions[0].readings) == 1 and not self._legacy:
            return self._single(decisions[0])
        asked = [decision for decision in decisions if decision.readings]
        if not asked:
            return []
        decision = asked[0] if len(asked) == 1 else tightest(asked)
        state = decision.binding
        assert state is not None, "a decision with readings has a binding limit"
        fields: Fields = []
        if self._draft:
            buckets = tuple(bucket for decision in asked for bucket, _, _ in decision.checks)
            value = f"{quote(state.name)};r={state.remaining};t={ceil_s(state.more_after_us)}"
            fields.append((b"ratelimit-policy", self._policies.get(buckets) or self._policy(buckets)))
            fields.append((b"ratelimit", value.encode()))
        if self._legacy:
            reset_s = int(time.time()) + ceil_s(state.reset_after_us)
            fields.append((b"x-ratelimit-limit", b"%d" % state.limit.amount))
            fields.append((b"x-ratelimit-remaining", b"%d" % state.remaining))
            fields.append((b"x-ratelimit-reset", b"%d" % reset_s))
        return fields

    def _single(self, decision: Decision) -> Fields:
        """Do what `fields` does, for one limit: nearly every request comes here."""
        bucket = decision.checks[0][0]
        spent, leaves_us, _, _ = decision.readings[0]
        remaining = bucket.limits[0].amount - spent
        more_after_s = -((decision.now_us - leaves_us) // 1_000_000) if spent else 0
        known = self._singles.get(bucket)
        if known is None:
            if len(self._singles) >= _MEMO:
                self._singles.clear()
            known = (b"ratelimit-policy", self._policy((bucket,))), quote(bucket.names[0]).encode()
            self._singles[bucket] = known
        policy, name = known
        return [policy, (b"ratelimit", b"%b;r=%d;t=%d" % (name, remaining if remaining > 0 else 0, more_after_s))]

    def _policy(self, buckets: tuple[Bucket, ...]) -> bytes:
        items = [policy_item(*item) for bucket in buckets for item in zip(bucket.names, bucket.limits, strict=True)]
        if len(self._policies) >= _MEMO:
            self._policies.clear()
        policy = self._policies[buckets] = ", ".join(dict.fromkeys(items)).encode()
        return policy


def tightest(decisions: Sequence[Decision]) -> Decision:
    """Return the decision that matters most to the client: a refusal, else the one with the least left."""

    def order(decision: Decision) -> tuple[bool, bool, int, int]:
        remaining = decision.remaining
        return decision.allowed, remaining is None, remaining or 0, -decision.more_after_us

    return min(decisions, key=order)


class Refusals:
    """The default answers, rendered once each."""

    def __init__(self) -> None:
        self._known: dict[_Asked, tuple[int, bytes, Fields]] = {}

    def answer(self, decision: Decision) -> tuple[int, bytes, Fields]:
        """Return status, body and header fields of the answer to a refused request."""
        readings = decision.readings
        if len(readings) == 1:
            # One limit refused: nearly every refusal comes here.
            bucket, wait_us = decision.checks[0][0], readings[0][3]
            asked: _Asked = decision.reason, ((bucket.names[0], bucket.limits[0]),)
            wait_s = None if wait_us == NEVER else ceil_s(wait_us)
        else:
            asked = decision.reason, tuple((state.name, state.limit) for state in decision.violated)
            wait_s = decision.retry_after
        status, body, fields = self._known.get(asked) or self._render(asked)
        return (status, body, fields) if wait_s is None else (status, body, [*fields, (b"retry-after", b"%d" % wait_s)])

    def _render(self, asked: _Asked) -> tuple[int, bytes, Fields]:
        status, problem = _problem(*asked)
        # "<" cannot end a script element then, wherever the text is pasted.
        body = json.dumps(problem).replace("<", "\\u003c").encode()
        fields = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        if len(self._known) >= _MEMO:
            self._known.clear()
        self._known[asked] = status, body, fields
        return status, body, fields


def _problem(reason: Reason, violated: Sequence[tuple[str, Limit]]) -> tuple[int, dict[str, object]]:
    if reason is Reason.BLOCKED:
        detail = "Requests from this address are not accepted."
        return 403, {"type": "about:blank", "title": "Forbidden", "status": 403, "detail": detail}
    allowed = " and ".join(f"{limit.amount} per {format_duration(limit.window_us)}" for _, limit in violated)
    problem: dict[str, object] = {
        "type": f"{_TYPES}quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
    }
    if reason is Reason.TOO_LARGE:
        problem["detail"] = f"This request costs more than {allowed} ever allows; it will not pass later either."
        problem["unsatisfiable"] = True
    else:
        problem["detail"] = f"No more than {allowed}; Retry-After says when to try again."
    problem["violated-policies"] = [name for name, _ in violated]
    return 429, problem


def complete(message: Message, fields: Fields) -> Message:
    """Add to the user's answer what a refusal must have, unless it is there."""
    headers = list(message.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    wanted = {b"cache-control", b"retry-after"} - present
    return {**message, "headers": [*headers, *((name, value) for name, value in fields if name in wanted)]}


async def refuse_websocket(scope: Scope, send: Send, status: int, body: bytes, fields: Fields) -> None:
    """Refuse a handshake: with the full answer where the server can send one, else by a close, which it makes a 403."""
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": status, "headers": fields})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send({"type": "websocket.close", "code": 1008})
