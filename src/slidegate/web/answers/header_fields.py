"""Header fields that tell a client where it stands.

RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-11, their syntax RFC 9651. The parts that
do not depend on the moment are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time
from typing import Final, Literal, TypeAlias

from ...core.decision import Bucket, Decision, LimitState, binding_place, ceil_s, unequal_costs
from ...core.draft_parameters import AMOUNT, MORE_AFTER_S, REMAINING, UNIT, WINDOW_S
from ...core.limits import AnyLimit, Concurrency, Quota
from ...core.memo import remember
from .foreign_fields import Field, Fields, lowered
from .tightest import tightest

HeaderStyle: TypeAlias = Literal["draft", "legacy", "both"]
Buckets: TypeAlias = Bucket | tuple[Bucket, ...]

OURS: Final = frozenset(
    {b"ratelimit", b"ratelimit-policy", b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"}
)
"""The names of the fields in all styles."""
_LENGTHS: Final = frozenset(map(len, OURS))
"""A look at the length spares nearly every field the making of its name in lower case."""


def quote(text: str) -> str:
    """Write printable ASCII as a string of RFC 9651, section 3.3.3."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def policy_item(name: str, limit: AnyLimit) -> str:
    """Write one item of RateLimit-Policy: ``"api";q=100;w=10``. The window only where it is whole seconds."""
    item = f"{quote(name)};{AMOUNT}={limit.amount}"
    if isinstance(limit, Concurrency):
        return f'{item};{UNIT}="concurrent-requests"'
    return item if limit.window_s is None else f"{item};{WINDOW_S}={limit.window_s}"


# Tuples without names: taking one with names apart takes twice the time.
_Policy: TypeAlias = tuple[tuple[bytes, bytes], tuple[bytes, ...], tuple[int, ...]]
"""What follows from the buckets of a request alone: the field RateLimit-Policy, and of each limit the value of
RateLimit, but for its numbers, and the amount."""


class HeaderWriter:
    """Writes the fields that tell a client where it stands.

    Args:
        style: ``"draft"`` for RateLimit and RateLimit-Policy, ``"legacy"`` for X-RateLimit-Limit, -Remaining and
            -Reset (Unix seconds), or ``"both"``.
    """

    def __init__(self, style: HeaderStyle) -> None:
        self._draft = style in ("draft", "both")
        self._legacy = style in ("legacy", "both")
        self._draft_alone = style == "draft"
        self._known: dict[Buckets, _Policy] = {}
        self._of_one: dict[Bucket, tuple[tuple[bytes, bytes], bytes, int]] = {}  # those with one limit
        self._policies: dict[Buckets, tuple[bytes, bytes]] = {}

    def complete(self, theirs: Iterable[Field], decision: Decision, further: Sequence[Decision] = ()) -> list[Field]:
        """Return the fields of a response, ours behind the application's; RateLimit shows the tightest limit.

        A field comes once, and ours says what the gate knows.

        Args:
            theirs: The fields of the application's.
            decision: The first decision about the request.
            further: All others.
        """
        fields: list[Field] = [*theirs]
        for field in fields:
            name = field[0]
            if len(name) in _LENGTHS and lowered(name) in OURS:
                ours = self._ours(decision, further)
                own = {name for name, _ in ours}
                return [field for field in fields if lowered(field[0]) not in own] + ours
        if further and not decision.readings:
            decision, *further = further  # a gate that limits nothing itself, and the limit at an endpoint below it
        readings = decision.readings
        if len(readings) == 1 and not further and (known := self._of_one.get(decision.checks[0][0])) is not None:
            # Nearly every response tells of one limit, in the draft's style: as `_ours` does it, in fewer steps.
            policy, value, amount = known
            spent, leaves_us, _, _ = readings[0]
            left = amount - spent
            more_after_s = -((decision.now_us - leaves_us) // 1_000_000) if spent else 0
            fields.append(policy)
            fields.append((b"ratelimit", value % (left if left > 0 else 0, more_after_s)))
            return fields
        return fields + self._ours(decision, further) if readings or further else fields

    def _ours(self, decision: Decision, further: Sequence[Decision]) -> Fields:
        """Return the fields that tell of some decisions."""
        asked = [decision for decision in (decision, *further) if decision.readings]
        if len(asked) != 1 or not self._draft_alone:
            return self._of_all(asked) if asked else []
        (decision,) = asked
        checks, readings = decision.checks, decision.readings
        buckets = asked_buckets(decision)
        known = self._known.get(buckets) or self._learn(buckets)
        if known is None:
            return self._of_all(asked)
        policy, values, amounts = known
        place = 0
        if len(readings) > 1:
            costs = () if len(checks) == 1 else unequal_costs(checks)
            place = binding_place(decision.allowed, amounts, readings, costs)
        elif isinstance(buckets, Bucket):
            remember(self._of_one, buckets, (policy, values[0], amounts[0]))
        spent, leaves_us, _, _ = readings[place]
        more_after_s = -((decision.now_us - leaves_us) // 1_000_000) if spent else 0
        return [policy, (b"ratelimit", values[place] % (max(amounts[place] - spent, 0), more_after_s))]

    def _of_all(self, asked: Sequence[Decision]) -> Fields:
        """Return the fields of several decisions that limits made, or of other styles than the draft's alone."""
        decision = asked[0] if len(asked) == 1 else tightest(asked)
        state = decision.binding
        assert state is not None, "a decision with readings has a binding limit"
        fields: Fields = []
        if self._draft:
            buckets = tuple(bucket for decision in asked for bucket, _, _ in decision.checks)
            # Nobody knows when a place is handed back.
            later = "" if isinstance(state.limit, Concurrency) else f";{MORE_AFTER_S}={ceil_s(state.more_after_us)}"
            value = f"{quote(state.name)};{REMAINING}={state.remaining}{later}"
            fields += [self._policy(buckets), (b"ratelimit", value.encode())]
        if self._legacy:
            fields.append((b"x-ratelimit-limit", b"%d" % state.limit.amount))
            fields.append((b"x-ratelimit-remaining", b"%d" % state.remaining))
            if not isinstance(state.limit, Concurrency):
                fields.append((b"x-ratelimit-reset", b"%d" % _reset_s(state)))
        return fields

    def _learn(self, asked: Buckets) -> _Policy | None:
        """Learn what follows from the buckets of a request; None where a limit is shown in another form than others."""
        named = _named(asked)
        if any(isinstance(limit, Concurrency) for _, limit in named):
            return None
        numbers = f";{REMAINING}=%d;{MORE_AFTER_S}=%d".encode()
        values = tuple(quote(name).encode().replace(b"%", b"%%") + numbers for name, _ in named)
        return remember(self._known, asked, (self._policy(asked), values, tuple(limit.amount for _, limit in named)))

    def _policy(self, asked: Buckets) -> tuple[bytes, bytes]:
        """Return the field RateLimit-Policy; a name that two gates share is written once."""
        field = self._policies.get(asked)
        if field is None:
            items = dict.fromkeys(policy_item(*item) for item in _named(asked))
            field = remember(self._policies, asked, (b"ratelimit-policy", ", ".join(items).encode()))
        return field


def _named(asked: Buckets) -> list[tuple[str, AnyLimit]]:
    """Return the limits of some buckets, each with its name."""
    buckets = (asked,) if isinstance(asked, Bucket) else asked
    return [item for bucket in buckets for item in zip(bucket.names, bucket.limits, strict=True)]


def _reset_s(state: LimitState) -> int:
    """Return the Unix second at which everything spent has left."""
    if isinstance(state.limit, Quota):
        # A period ends with a minute; the decision is a little older than this moment.
        return round(time() + state.reset_after_us / 1_000_000)
    return int(time()) + ceil_s(state.reset_after_us)


def asked_buckets(decision: Decision) -> Buckets:
    """Return the buckets of a decision, as the key under which their fields and answers are remembered."""
    checks = decision.checks
    return checks[0][0] if len(checks) == 1 else tuple([bucket for bucket, _, _ in checks])
