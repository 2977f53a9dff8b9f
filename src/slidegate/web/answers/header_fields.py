"""Header fields that tell a client where it stands.

RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-11, their syntax RFC 9651. The parts that
do not depend on the moment are made once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from ...core.decision import Bucket, Decision, binding_place, ceil_s, unequal_costs
from ...core.limits import Limit
from ...core.memo import remember
from .tightest import tightest

HeaderStyle: TypeAlias = Literal["draft", "legacy", "both"]
Fields: TypeAlias = list[tuple[bytes, bytes]]
Buckets: TypeAlias = Bucket | tuple[Bucket, ...]


def quote(text: str) -> str:
    """Write printable ASCII as a string of RFC 9651, section 3.3.3."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def policy_item(name: str, limit: Limit) -> str:
    """Write one item of RateLimit-Policy: ``"api";q=100;w=10``. `w` only where the window is whole seconds."""
    seconds, rest = divmod(limit.window_us, 1_000_000)
    return f"{quote(name)};q={limit.amount}" + ("" if rest else f";w={seconds}")


class _Policy(NamedTuple):
    """The parts of the fields that follow from the buckets of a request alone."""

    field: tuple[bytes, bytes]
    names: tuple[bytes, ...]
    """The quoted name of each limit."""
    amounts: tuple[int, ...]


class HeaderWriter:
    """Writes the fields that tell a client where it stands.

    Args:
        style: ``"draft"`` for RateLimit and RateLimit-Policy, ``"legacy"`` for X-RateLimit-Limit, -Remaining and
            -Reset (Unix seconds), or ``"both"``.
    """

    def __init__(self, style: HeaderStyle) -> None:
        self._draft = style in ("draft", "both")
        self._legacy = style in ("legacy", "both")
        self._known: dict[Buckets, _Policy] = {}

    def fields(self, decisions: Sequence[Decision]) -> Fields:
        """Return the fields for all decisions about one request; RateLimit shows the tightest limit."""
        if len(decisions) == 1 and not self._legacy and decisions[0].readings:
            return self._only(decisions[0])
        asked = [decision for decision in decisions if decision.readings]
        if not asked:
            return []
        decision = asked[0] if len(asked) == 1 else tightest(asked)
        state = decision.binding
        assert state is not None, "a decision with readings has a binding limit"
        fields: Fields = []
        if self._draft:
            buckets = tuple(bucket for decision in asked for bucket, _, _ in decision.checks)
            policy = self._known.get(buckets) or self._learn(buckets)
            value = f"{quote(state.name)};r={state.remaining};t={ceil_s(state.more_after_us)}"
            fields += [policy.field, (b"ratelimit", value.encode())]
        if self._legacy:
            reset_s = int(time.time()) + ceil_s(state.reset_after_us)
            fields.append((b"x-ratelimit-limit", b"%d" % state.limit.amount))
            fields.append((b"x-ratelimit-remaining", b"%d" % state.remaining))
            fields.append((b"x-ratelimit-reset", b"%d" % reset_s))
        return fields

    def _only(self, decision: Decision) -> Fields:
        """Do what `fields` does for one decision in the draft's style: nearly every response has just that."""
        checks, readings = decision.checks, decision.readings
        buckets = checks[0][0] if len(checks) == 1 else asked_buckets(decision)
        field, names, amounts = self._known.get(buckets) or self._learn(buckets)
        place = 0
        if len(readings) > 1:
            costs = () if len(checks) == 1 else unequal_costs(checks)
            place = binding_place(decision.allowed, amounts, readings, costs)
        spent, leaves_us, _, _ = readings[place]
        remaining = amounts[place] - spent
        more_after_s = -((decision.now_us - leaves_us) // 1_000_000) if spent else 0
        state = names[place], remaining if remaining > 0 else 0, more_after_s
        return [field, (b"ratelimit", b"%b;r=%d;t=%d" % state)]

    def _learn(self, asked: Buckets) -> _Policy:
        buckets = (asked,) if isinstance(asked, Bucket) else asked
        named = [item for bucket in buckets for item in zip(bucket.names, bucket.limits, strict=True)]
        # A name that two gates share is written once.
        field = b"ratelimit-policy", ", ".join(dict.fromkeys(policy_item(*item) for item in named)).encode()
        policy = _Policy(
            field, tuple(quote(name).encode() for name, _ in named), tuple(limit.amount for _, limit in named)
        )
        return remember(self._known, asked, policy)


def asked_buckets(decision: Decision) -> Buckets:
    """Return the buckets of a decision, as the key under which their fields and answers are remembered."""
    checks = decision.checks
    return checks[0][0] if len(checks) == 1 else tuple([bucket for bucket, _, _ in checks])
