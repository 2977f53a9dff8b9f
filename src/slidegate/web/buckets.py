"""The buckets of a rule: who owns its counts in a store, and the limits with their amounts and names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..core.decision import Bucket, wire_names
from ..core.limits import AnyLimit
from ..limiter.named_limits import NamedLimit, named
from .rules import Rule

IN_TURN: Final = "::"
"""Separates an identity from its turn number; names contain no colon."""


def buckets_of(rule: Rule, identity: str, names: Sequence[str]) -> Sequence[Bucket]:
    """Return the bucket of a rule's limits and that of its permits; either is omitted if the rule has none.

    Args:
        rule: The rule.
        identity: The identity of its counts.
        names: The names in header fields, in the order of `Rule.wire_names`.
    """
    buckets = []
    if rule.limits or rule.limits_function is not None:
        buckets.append(make_bucket(rule, identity, rule.limits, names[: len(rule.limits)]))
    if rule.concurrency is not None:
        buckets.append(make_bucket(rule, identity, (rule.concurrency,), names[-1:]))
    return buckets


def name_of(identity: str) -> str:
    """Return an identity without its turn number."""
    return identity.partition(IN_TURN)[0]


def named_limits(rule: Rule, buckets: Iterable[Bucket]) -> list[NamedLimit]:
    """Return the limits of a rule by their names in header fields, with the reason if operators cannot change one.

    Args:
        rule: The rule.
        buckets: The buckets that count by them.
    """
    cost = rule.cost if isinstance(rule.cost, int) else rule.cost_max or 1
    found: list[NamedLimit] = []
    for bucket in buckets:
        configured = (rule.concurrency,) if bucket.is_permit and rule.concurrency is not None else rule.limits
        made = named(bucket.names, bucket.limits, configured, rule.label, 1 if bucket.is_permit else max(cost, 1))
        for one in made:
            one.shadow = rule.action == "shadow"
            if rule.limits_function is not None and not bucket.is_permit:
                one.fixed = "a function returns the limits of its rule for each request; change them there"
        found += made
    return found


def amounts_by_window(limits: Iterable[AnyLimit]) -> dict[object, int]:
    """Return the amounts of limits by their windows."""
    return {limit.same_window: limit.amount for limit in limits}


def make_bucket(rule: Rule, identity: str, limits: Sequence[AnyLimit], names: Sequence[str] | None = None) -> Bucket:
    permits = rule.concurrency in limits
    return Bucket(
        identity,
        limits,
        names if names is not None else wire_names(rule.label, limits),
        count_denied=rule.count_denied and not permits,
        unit=None if permits else rule.unit,
        label=rule.label,
        on_error=rule.on_error,
    )
